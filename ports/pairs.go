package ports

// PairPool is an optional interface of a SessionPool whose server has a second
// space of lock IDs, that of pairs of 32-bit integers. No lock of one space
// excludes one of the other, whatever the numbers.
type PairPool interface {
	SessionPool
	// Pairs returns a pool on the same server whose sessions take the locks of
	// pairs. Every lock ID that is passed to it or to its sessions, or to one of
	// its optional interfaces, is what PairID makes of a pair.
	Pairs() SessionPool
}

// PairID packs the two integers of a lock into one number: the first is the high
// half, the second the low half. Any number stands for a pair.
func PairID(first, second int32) int64 {
	return int64(first)<<32 | int64(uint32(second))
}

// IDPair unpacks what PairID has packed.
func IDPair(id int64) (first, second int32) {
	return int32(id >> 32), int32(id)
}
