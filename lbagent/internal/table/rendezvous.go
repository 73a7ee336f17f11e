// SPDX-License-Identifier: Apache-2.0

// Package table computes which node, and on a node which endpoint, takes a
// flow. It uses rendezvous hashing: a change moves only the rows that must
// move, and every node computes the same result. It is pure and uses
// no floating point, so that the result is the same on every architecture.
package table

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Rendezvous computes node tables by weighted rendezvous hashing. The node
// with the smallest −log(u)/weight is nearest to a row; u is uniform in (0, 1) and
// depends on row and node alone. −log(u)/weight is exponentially distributed
// with rate weight. So each node's is the smallest with the probability
// weight/Σweights. (Thaler and Ravishankar, "Using name-based
// mappings to increase hit rates", 1998; the logarithmic method for weights:
// Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005.)
//
// It keeps the −log(u) of every node that it has seen, 16 KiB for each, and is
// not safe for concurrent use, but for Advance with weights that it has seen (See).
type Rendezvous struct {
	scores map[forwarding.NodeID]*[forwarding.Rows]uint32
}

// NewRendezvous returns a Rendezvous that has seen no node.
func NewRendezvous() *Rendezvous {
	return &Rendezvous{scores: map[forwarding.NodeID]*[forwarding.Rows]uint32{}}
}

// See has it keep what it needs of the nodes that have a weight.
func (r *Rendezvous) See(weights map[forwarding.NodeID]uint32) {
	for node, weight := range weights {
		if node != 0 && weight > 0 {
			r.scoresOf(node)
		}
	}
}

// Primaries returns the owner of each of so many rows, a power of two. Each node has its part of the
// rows, or a tenth more or less (assign), and exactly its part of more than forwarding.Rows (refine). A
// node of weight zero owns none; where no node has a weight, all owners are zero.
func (r *Rendezvous) Primaries(weights map[forwarding.NodeID]uint32, rows int) []forwarding.NodeID {
	return primaries(r.contenders(weights), rows)
}

// tolerance is by how many percent a node may have more or less than its part. Were parts exact,
// one pod more would move three times the rows in a hundred nodes, and chains be the sooner full.
const tolerance = 10

// contenders returns the nodes that have a weight, in the order of their ids.
func (r *Rendezvous) contenders(weights map[forwarding.NodeID]uint32) []contender {
	list := make([]contender, 0, len(weights))
	for node, weight := range weights {
		if node != 0 && weight > 0 {
			list = append(list, contender{
				id: uint32(node), weight: uint64(weight), scores: r.scoresOf(node)[:], lot: uint32(mix(uint64(node))),
			})
		}
	}
	slices.SortFunc(list, func(a, b contender) int { return cmp.Compare(a.id, b.id) })
	return list
}

func primaries(contenders []contender, rows int) []forwarding.NodeID {
	owners := make([]forwarding.NodeID, rows)
	if len(contenders) == 0 {
		return owners
	}
	assigned := assign(contenders, min(rows, forwarding.Rows), tolerance)
	if rows > forwarding.Rows {
		assigned = refine(contenders, assigned, rows)
	}
	for row, owner := range assigned {
		owners[row] = forwarding.NodeID(contenders[owner].id)
	}
	return owners
}

// Forget drops what is kept of nodes that do not exist any more.
func (r *Rendezvous) Forget(exists func(forwarding.NodeID) bool) {
	maps.DeleteFunc(r.scores, func(node forwarding.NodeID, _ *[forwarding.Rows]uint32) bool {
		return !exists(node)
	})
}

func (r *Rendezvous) scoresOf(node forwarding.NodeID) *[forwarding.Rows]uint32 {
	if scores, found := r.scores[node]; found {
		return scores
	}
	scores := &[forwarding.Rows]uint32{}
	for row := range scores {
		scores[row] = negativeLog2(mix(uint64(node)<<32 | uint64(row)))
	}
	r.scores[node] = scores
	return scores
}

// fractionBits is the precision of negativeLog2: its results are below 65, so
// that they fit 32 bits.
const fractionBits = 25

// negativeLog2 returns −log2((2h+1)/2^65) in units of 2^-25, rounded up: the
// logarithm of h taken as a number in (0, 1).
func negativeLog2(h uint64) uint32 {
	// u = (2h+1)/2^65 = m·2^-(zeros+1) with the mantissa m in [1, 2), held
	// with 63 fraction bits. The lowest bit of 2h+1 is beyond its precision
	// unless h has leading zeros.
	zeros := bits.LeadingZeros64(h)
	mantissa := uint64(1) << 63
	if zeros < 64 {
		mantissa = h << zeros
		if zeros > 0 {
			mantissa |= 1 << (zeros - 1)
		}
	}
	// Bit by bit: squaring the mantissa doubles its logarithm, and the
	// logarithm's next bit is whether the square is 2 or more; if so the
	// square is halved. Without a branch, which could not be predicted.
	var fraction uint32
	for range fractionBits {
		high, low := bits.Mul64(mantissa, mantissa)
		bit := high >> 63
		fraction = fraction<<1 | uint32(bit)
		mantissa = high<<(1-bit) | low>>63&(1-bit)
	}
	return uint32(zeros+1)<<fractionBits - fraction
}

// mix spreads x over 64 bits: two steps of SplitMix64 (Steele, Lea and Flood,
// "Fast splittable pseudorandom number generators", 2014). It is part of what
// nodes of different versions must agree on.
func mix(x uint64) uint64 {
	for range 2 {
		x += 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return x
}
