// SPDX-License-Identifier: Apache-2.0

package table

import (
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

type weights = map[forwarding.NodeID]uint32

func everyNode(forwarding.NodeID) bool { return true }

// genWeights draws between 1 and 20 nodes with weights up to 30, some zero.
func genWeights(t *rapid.T) weights {
	return rapid.MapOfN(
		rapid.Custom(func(t *rapid.T) forwarding.NodeID {
			return forwarding.NodeID(rapid.IntRange(1, forwarding.MaxNodeID).Draw(t, "node"))
		}),
		rapid.Uint32Range(0, 30), 1, 20,
	).Draw(t, "weights")
}

func equalWeights(nodes int, weight uint32) weights {
	w := weights{}
	for id := 1; id <= nodes; id++ {
		w[forwarding.NodeID(id)] = weight
	}
	return w
}

// uniform is what negativeLog2 takes the logarithm of.
func uniform(h uint64) float64 { return (float64(h) + 0.5) / math.Exp2(64) }

func TestNegativeLog2(t *testing.T) {
	check := func(t interface{ Errorf(string, ...any) }, h uint64) {
		got := float64(negativeLog2(h)) / (1 << fractionBits)
		want := -math.Log2(uniform(h))
		// Rounded up, so never below; one unit for the rounding, the rest
		// for the precision of the reference.
		if got < want-1e-9 || got > want+1.5/(1<<fractionBits) {
			t.Errorf("negativeLog2(%#x) = %.12f, want %.12f", h, got, want)
		}
	}
	for _, h := range []uint64{0, 1, 2, 3, 1 << 31, 1 << 32, 1<<63 - 1, 1 << 63, 1<<63 + 1, math.MaxUint64 - 1, math.MaxUint64} {
		check(t, h)
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.Uint64().Draw(t, "h"))
	})
}

// The tables are what nodes of different versions and architectures agree on:
// this checksum may only change together with a way to upgrade a cluster.
func TestTableStaysTheSame(t *testing.T) {
	hash := fnv.New64a()
	next := NewRendezvous().Advance(nil, weights{1: 3, 2: 1, 7: 2, 4095: 5, 9: 0}, everyNode)
	for _, row := range next {
		for _, node := range []forwarding.NodeID{row.Primary, row.Chain[0], row.Chain[1], row.Chain[2]} {
			hash.Write([]byte{byte(node >> 8), byte(node)})
		}
	}
	if got, want := hash.Sum64(), uint64(0x49d4f06ff08356a1); got != want {
		t.Errorf("checksum of the table = %#x, want %#x", got, want)
	}
}

func TestShareIsProportionalToWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := genWeights(t)
		total := 0.0
		for _, weight := range w {
			total += float64(weight)
		}
		owned := map[forwarding.NodeID]int{}
		for _, owner := range NewRendezvous().Primaries(w) {
			owned[owner]++
		}
		if total == 0 {
			if owned[0] != forwarding.Rows {
				t.Fatalf("without a weight %d rows have an owner", forwarding.Rows-owned[0])
			}
			return
		}
		for node, weight := range w {
			share := float64(weight) / total
			// Rows are independent draws: six standard deviations, and some
			// for small shares, whose distribution leans to one side.
			tolerance := 6*math.Sqrt(forwarding.Rows*share*(1-share)) + 10
			if off := math.Abs(float64(owned[node]) - share*forwarding.Rows); off > tolerance {
				t.Errorf("node %d owns %d rows, want %.0f ± %.0f", node, owned[node], share*forwarding.Rows, tolerance)
			}
		}
	})
}

func TestOnlyWhatMustMoveMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := genWeights(t)
		node := rapid.SampledFrom(slices.Sorted(maps.Keys(before))).Draw(t, "changed")
		after := maps.Clone(before)
		after[node] = rapid.Uint32Range(0, 30).Draw(t, "weight")
		r := NewRendezvous()
		old, next := r.Primaries(before), r.Primaries(after)
		for row := range old {
			if old[row] == next[row] {
				continue
			}
			if after[node] > before[node] && next[row] != node {
				t.Fatalf("row %d went from %d to %d, but only %d has become heavier", row, old[row], next[row], node)
			}
			if after[node] < before[node] && old[row] != node {
				t.Fatalf("row %d went from %d to %d, but only %d has become lighter", row, old[row], next[row], node)
			}
			if after[node] == before[node] {
				t.Fatalf("row %d went from %d to %d, but nothing has changed", row, old[row], next[row])
			}
		}
	})
}

// A fresh Rendezvous and one that has cached scores in another order agree.
func TestCacheDoesNotDecide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := genWeights(t)
		used := NewRendezvous()
		used.Primaries(genWeights(t))
		for node, weight := range w {
			used.Primaries(weights{node: weight})
		}
		used.Forget(func(node forwarding.NodeID) bool { return node%2 == 0 })
		if *used.Advance(nil, w, everyNode) != *NewRendezvous().Advance(nil, w, everyNode) {
			t.Fatal("the table depends on what was computed before")
		}
	})
}
