package pglock

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/fnv"
)

// SHA256Key is the default derivation of a lock ID from a key: the first eight
// bytes of the key's SHA-256 sum, big-endian, with the top bit cleared, which
// leaves a non-negative number of 63 bits. It is the derivation of the
// eventsource-py lock manager, so that both exclude each other, and it is
// frozen: another one would let an old and a new process hold one key at once.
//
// Among n keys in use, two share an ID with a probability of about n²/2⁶⁴:
// one in 18 million for a million keys. Keys that share an ID exclude each
// other; they never let a second holder in.
func SHA256Key(key string) int64 {
	sum := sha256.Sum256([]byte(key))
	return int64(binary.BigEndian.Uint64(sum[:8]) &^ (1 << 63))
}

// FNV1aKey derives the lock ID as the 64-bit FNV-1a hash of the key, taken as
// a signed number: the lockKey function that articles on advisory locks in Go
// use. Give it to WithKeyFunc to exclude services that were built that way.
// FNV is not resistant to keys chosen to collide; see SHA256Key for the rest.
func FNV1aKey(key string) int64 {
	h := fnv.New64a()
	h.Write([]byte(key)) // never fails, says hash.Hash
	return int64(h.Sum64())
}

// MigrationKey names the lock for one operation on one tenant, as
// "operation:tenantID". Two operations on one tenant do not exclude each
// other, nor does one operation on two tenants.
func MigrationKey(tenantID, operation string) string {
	return operation + ":" + tenantID
}
