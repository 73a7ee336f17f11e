// SPDX-License-Identifier: Apache-2.0

// Package table computes the node of a flow and, on a node, its endpoint, by rendezvous hashing, so that
// changes move few rows and all nodes compute the same result. It is pure and avoids floating point, so that
// the result is the same on every architecture.
package table

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Rendezvous computes node tables by weighted rendezvous hashing. The owner of a row is the node with the
// smallest −log(u)/weight, for a uniform u in (0, 1) that depends only on row and node. −log(u)/weight is
// exponentially distributed with rate weight, so that each node's is the smallest with probability
// weight/Σweights. (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998;
// Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005.)
//
// It caches the −log(u) of each node, at most 16 KiB per node. It is not safe for concurrent use, except for
// Advance with cached nodes (See).
type Rendezvous struct {
	scores map[forwarding.NodeID][]uint32
}

// NewRendezvous returns a Rendezvous with an empty cache.
func NewRendezvous() *Rendezvous {
	return &Rendezvous{scores: map[forwarding.NodeID][]uint32{}}
}

// CacheScores caches the scores of the weighted nodes for tables of a size.
func (r *Rendezvous) CacheScores(weights map[forwarding.NodeID]uint32, size Size) {
	for node, weight := range weights {
		if node != 0 && weight > 0 {
			r.scoresOf(node, size.Ranked)
		}
	}
}

// Primaries returns the owner of each row. Each node gets its share of the rows within a few percent (slack,
// assign). Nodes of weight zero own no rows; without weights, all owners are zero.
func (r *Rendezvous) Primaries(weights map[forwarding.NodeID]uint32, size Size) []forwarding.NodeID {
	return primaries(r.candidates(weights, size), size)
}

// Ordinary is the size of a VIPRoute's tables: a block of rows, each with its own scores.
var Ordinary = Size{Rows: forwarding.Rows, Ranked: forwarding.Rows}

// tolerance returns how far the rows of a node may deviate from its share. With exact shares more rows would move
// when a node gets another pod, and chains would fill sooner. An ordinary table has too few rows per node for a
// smaller tolerance: in a cluster of 1,000 nodes nine times as many rows would move.
func (s Size) tolerance() tolerance {
	if s == Ordinary {
		return tolerance{part: 10}
	}
	return tolerance{part: 7, given: 7}
}

func (r *Rendezvous) candidates(weights map[forwarding.NodeID]uint32, size Size) []candidate {
	list := make([]candidate, 0, len(weights))
	for node, weight := range weights {
		if node != 0 && weight > 0 {
			list = append(list, candidate{
				id: uint32(node), weight: uint64(weight), scores: r.scoresOf(node, size.Ranked), tieBreaker: uint32(mix(uint64(node))),
			})
		}
	}
	slices.SortFunc(list, func(a, b candidate) int { return cmp.Compare(a.id, b.id) })
	return list
}

func primaries(contenders []candidate, size Size) []forwarding.NodeID {
	owners := make([]forwarding.NodeID, size.Rows)
	if len(contenders) == 0 {
		return owners
	}
	for row, owner := range assign(contenders, size, size.tolerance()) {
		owners[row] = forwarding.NodeID(contenders[owner].id)
	}
	return owners
}

// Evict evicts nodes that no longer exist.
func (r *Rendezvous) Evict(exists func(forwarding.NodeID) bool) {
	maps.DeleteFunc(r.scores, func(node forwarding.NodeID, _ []uint32) bool {
		return !exists(node)
	})
}

func (r *Rendezvous) scoresOf(node forwarding.NodeID, rows int) []uint32 {
	scores := r.scores[node]
	if len(scores) >= rows {
		return scores
	}
	grown := make([]uint32, rows)
	for row := copy(grown, scores); row < rows; row++ {
		grown[row] = negativeLog2(mix(uint64(node)<<32 | uint64(row)))
	}
	r.scores[node] = grown
	return grown
}

// fractionBits is the precision of negativeLog2; its results are below 65 and fit 32 bits.
const fractionBits = 25

// negativeLog2 returns −log2((2h+1)/2^65) in units of 2^-25, rounded up.
func negativeLog2(h uint64) uint32 {
	// u = (2h+1)/2^65 = m·2^-(zeros+1), with the mantissa m in [1, 2) in 63 fraction bits. The lowest bit of
	// 2h+1 is beyond that precision unless h has leading zeros.
	zeros := bits.LeadingZeros64(h)
	mantissa := uint64(1) << 63
	if zeros < 64 {
		mantissa = h << zeros
		if zeros > 0 {
			mantissa |= 1 << (zeros - 1)
		}
	}
	// Squaring the mantissa doubles its logarithm; the next bit of the logarithm is whether the square is at
	// least 2, in which case it is halved. There is no (unpredictable) branch.
	var fraction uint32
	for range fractionBits {
		high, low := bits.Mul64(mantissa, mantissa)
		bit := high >> 63
		fraction = fraction<<1 | uint32(bit)
		mantissa = high<<(1-bit) | low>>63&(1-bit)
	}
	return uint32(zeros+1)<<fractionBits - fraction
}

// mix hashes x to 64 bits: two steps of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", 2014). All versions of the agent must use the same function.
func mix(x uint64) uint64 {
	for range 2 {
		x += 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return x
}
