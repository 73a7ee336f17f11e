// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"encoding/binary"
	"net/netip"
)

const (
	// BloomWords is the size of a Bloom's bits, in words of 64.
	BloomWords = 1024

	bloomNetwork4 = 24
	bloomNetwork6 = 64

	// bloomEnumerated is how many bits of networks of that size are entered one by
	// one; a prefix that is shorter by more sets all bits.
	bloomEnumerated = 16
)

// Bloom is a Bloom filter with one hash function: one bit for the /24 of an
// IPv4 address, or the /64 of an IPv6 address. By it the program passes
// packets for others without a lookup in a hash map. The zero value holds no
// prefix.
type Bloom struct {
	// counts are how many prefixes want a bit, all how many want every bit.
	counts [64 * BloomWords]uint32
	all    int
	words  [BloomWords]uint64
}

// BloomBit is the bit of an address: of 64·BloomWords.
func BloomBit(address netip.Addr) uint32 { return bloomBit(bloomNetwork(address)) }

// bloomNetwork is the bytes of the network as the program loads them.
func bloomNetwork(address netip.Addr) uint64 {
	var b [8]byte
	if address = address.Unmap(); address.Is4() {
		four := address.As4()
		copy(b[:], four[:3])
	} else {
		sixteen := address.As16()
		copy(b[:], sixteen[:8])
	}
	return binary.NativeEndian.Uint64(b[:])
}

// bloomBit is Fibonacci hashing: the upper bits of the product with 2^64 over
// the golden ratio.
func bloomBit(network uint64) uint32 {
	return uint32(network * 0x9e3779b97f4a7c15 >> 48)
}

// Add enters the addresses of a prefix, once more if it is there already.
func (f *Bloom) Add(prefix netip.Prefix) { f.change(prefix, 1) }

// Remove undoes one Add of the same prefix.
func (f *Bloom) Remove(prefix netip.Prefix) { f.change(prefix, -1) }

func (f *Bloom) change(prefix netip.Prefix, by int) {
	prefix = prefix.Masked()
	length, address := bloomNetwork6, prefix.Addr()
	if address.Is4() {
		length = bloomNetwork4
	}
	missing := max(length-prefix.Bits(), 0)
	if missing > bloomEnumerated {
		f.all += by
		return
	}
	// The network's number grows by one in the last byte of the network.
	bytes, last := address.AsSlice(), length/8-1
	for range 1 << missing {
		network, _ := netip.AddrFromSlice(bytes)
		f.set(BloomBit(network), by)
		for i := last; i >= 0; i-- {
			if bytes[i]++; bytes[i] != 0 {
				break
			}
		}
	}
}

func (f *Bloom) set(bit uint32, by int) {
	f.counts[bit] = uint32(int(f.counts[bit]) + by)
	mask := uint64(1) << (bit % 64)
	if f.counts[bit] == 0 {
		f.words[bit/64] &^= mask
	} else {
		f.words[bit/64] |= mask
	}
}

// Word is one word of the bits: bit b is in word b/64 at b%64.
func (f *Bloom) Word(i int) uint64 {
	if f.all > 0 {
		return ^uint64(0)
	}
	return f.words[i]
}
