package keys

import (
	"encoding/binary"
	"math/bits"
)

// lookup3 is Bob Jenkins's hash of that name as PostgreSQL has it, on a
// little-endian machine: with a start of its own, with a seed in its extended
// form, and with the low byte of the last word of a short block left free.
func lookup3(key string, seed uint64) (b, c uint32) {
	start := 0x9e3779b9 + uint32(len(key)) + 3923095
	a, b, c := start, start, start
	if seed != 0 {
		a, b, c = mix(a+uint32(seed>>32), b+uint32(seed), c)
	}
	for ; len(key) >= 12; key = key[12:] {
		a, b, c = mix(a+word(key), b+word(key[4:]), c+word(key[8:]))
	}
	// A last block of less than twelve bytes, with zeros behind it.
	var last [12]byte
	copy(last[:], key)
	rest := string(last[:])
	return final(a+word(rest), b+word(rest[4:]), c+word(rest[8:])<<8)
}

// word reads four bytes.
func word(s string) uint32 { return binary.LittleEndian.Uint32([]byte(s[:4])) }

// mix and final are the rounds of lookup3.
func mix(a, b, c uint32) (uint32, uint32, uint32) {
	for _, by := range [2][3]int{{4, 6, 8}, {16, 19, 4}} {
		a -= c
		a ^= bits.RotateLeft32(c, by[0])
		c += b
		b -= a
		b ^= bits.RotateLeft32(a, by[1])
		a += c
		c -= b
		c ^= bits.RotateLeft32(b, by[2])
		b += a
	}
	return a, b, c
}

func final(a, b, c uint32) (uint32, uint32) {
	for _, by := range [2][3]int{{14, 11, 25}, {16, 4, 14}} {
		c ^= b
		c -= bits.RotateLeft32(b, by[0])
		a ^= c
		a -= bits.RotateLeft32(c, by[1])
		b ^= a
		b -= bits.RotateLeft32(a, by[2])
	}
	c ^= b
	c -= bits.RotateLeft32(b, 24)
	return b, c
}
