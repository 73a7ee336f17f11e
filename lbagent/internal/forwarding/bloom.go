// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"go4.org/netipx"
)

const (
	// BloomWords is the size of a Bloom in 64-bit words.
	BloomWords = 1024

	bloomNetwork4 = 24
	bloomNetwork6 = 64

	// bloomEnumerated limits the networks of a prefix that are entered individually to 2^16; shorter prefixes
	// set all bits.
	bloomEnumerated = 16
)

// Bloom is a Bloom filter with one hash function and one bit per IPv4 /24 or IPv6 /64. It lets the BPF program
// pass foreign packets without a hash map lookup. A second filter records the parts of those networks with
// prefixes. The zero value is empty.
type Bloom struct {
	networks, parts countedBits
	all             int
}

type countedBits struct {
	counts [64 * BloomWords]uint32
	words  [BloomWords]uint64
}

// BloomBit returns the bit of an address, below 64·BloomWords.
func BloomBit(address netip.Addr) uint32 { return bloomBit(bloomNetwork(address)) }

// BloomPart returns the bit of the address's part of its network, below 64·BloomWords. It is in the same word
// as the network's bit.
func BloomPart(address netip.Addr) uint32 {
	return partBit(BloomBit(address), partOf(address))
}

func partBit(network, part uint32) uint32 { return network/64*64 + part }

func partOf(address netip.Addr) uint32 {
	if address = address.Unmap(); address.Is4() {
		return uint32(address.As4()[3]) / 4
	}
	sixteen := address.As16()
	host := binary.BigEndian.Uint64(sixteen[8:])
	return uint32(max(bits.Len64(host), 1) - 1)
}

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

// bloomBit is Fibonacci hashing: the upper bits of the product with 2^64 over the golden ratio.
func bloomBit(network uint64) uint32 {
	return uint32(network * 0x9e3779b97f4a7c15 >> 48)
}

// Add adds the addresses of a prefix. Repeated calls are counted.
func (f *Bloom) Add(prefix netip.Prefix) { f.change(prefix, 1) }

// Remove reverses one Add of the same prefix.
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
	// All networks of a prefix have the same parts: all 64, unless the prefix is longer than a network.
	first, end := partOf(address), partOf(netipx.PrefixLastIP(prefix))+1
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

// Word returns a word of the networks' bits: bit b is in word b/64 at b%64.
func (f *Bloom) Word(i int) uint64 { return f.word(&f.networks, i) }

// PartWord returns a word of the parts' bits.
func (f *Bloom) PartWord(i int) uint64 { return f.word(&f.parts, i) }

func (f *Bloom) word(b *countedBits, i int) uint64 {
	if f.all > 0 {
		return ^uint64(0)
	}
	return b.words[i]
}
