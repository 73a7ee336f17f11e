// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"go4.org/netipx"
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
// packets for others without a lookup in a hash map. A second filter says in
// which parts of those networks its prefixes are. The zero value holds no
// prefix.
type Bloom struct {
	networks, parts countedBits
	// all is how many prefixes want every bit.
	all int
}

// countedBits are bits, and how many prefixes want each.
type countedBits struct {
	counts [64 * BloomWords]uint32
	words  [BloomWords]uint64
}

// BloomBit is the bit of an address: of 64·BloomWords.
func BloomBit(address netip.Addr) uint32 { return bloomBit(bloomNetwork(address)) }

// BloomPart is the bit of the address's part of its network: of 64·BloomWords. It
// is in the word with the same index as the network's bit.
func BloomPart(address netip.Addr) uint32 {
	return partBit(BloomBit(address), partOf(address))
}

func partBit(network, part uint32) uint32 { return network/64*64 + part }

// partOf is the part of its network that the address lies in: of 64. For IPv4 it is
// four addresses; for IPv6 those whose last 64 bits have the same highest bit set.
// It grows with the address.
func partOf(address netip.Addr) uint32 {
	if address = address.Unmap(); address.Is4() {
		return uint32(address.As4()[3]) / 4
	}
	sixteen := address.As16()
	host := binary.BigEndian.Uint64(sixteen[8:])
	return uint32(max(bits.Len64(host), 1) - 1)
}

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
	// The prefix has the same parts of each of its networks: all, if it is no part of one.
	first, end := partOf(address), partOf(netipx.PrefixLastIP(prefix))+1
	// The network's number grows by one in the last byte of the network.
	bytes, last := address.AsSlice(), length/8-1
	for range 1 << missing {
		network, _ := netip.AddrFromSlice(bytes)
		bit := BloomBit(network)
		f.networks.change(bit, by)
		for part := first; part < end; part++ {
			f.parts.change(partBit(bit, part), by)
		}
		for i := last; i >= 0; i-- {
			if bytes[i]++; bytes[i] != 0 {
				break
			}
		}
	}
}

func (b *countedBits) change(bit uint32, by int) {
	b.counts[bit] = uint32(int(b.counts[bit]) + by)
	mask := uint64(1) << (bit % 64)
	if b.counts[bit] == 0 {
		b.words[bit/64] &^= mask
	} else {
		b.words[bit/64] |= mask
	}
}

// Word is one word of the bits of networks: bit b is in word b/64 at b%64.
func (f *Bloom) Word(i int) uint64 { return f.word(&f.networks, i) }

// PartWord is one word of the bits of their parts.
func (f *Bloom) PartWord(i int) uint64 { return f.word(&f.parts, i) }

func (f *Bloom) word(b *countedBits, i int) uint64 {
	if f.all > 0 {
		return ^uint64(0)
	}
	return b.words[i]
}
