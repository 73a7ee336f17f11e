// SPDX-License-Identifier: Apache-2.0

package table

import (
	"hash/fnv"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

type weights = map[forwarding.NodeID]uint32

func everyNode(forwarding.NodeID) bool { return true }

// genWeights draws 1 to 20 nodes with weights up to 30, some of them zero.
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

func uniform(h uint64) float64 { return (float64(h) + 0.5) / math.Exp2(64) }

func TestNegativeLog2(t *testing.T) {
	check := func(t interface{ Errorf(string, ...any) }, h uint64) {
		got := float64(negativeLog2(h)) / (1 << fractionBits)
		want := -math.Log2(uniform(h))
		// Results are rounded up: allow one unit, and the rest for the reference's precision.
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

// All nodes, versions and architectures must compute the same tables. Change this checksum only together with
// an upgrade procedure for clusters.
func TestTableIsDeterministic(t *testing.T) {
	hash := fnv.New64a()
	next := NewRendezvous().Advance(nil, Ordinary, weights{1: 3, 2: 1, 7: 2, 4095: 5, 9: 0}, everyNode)
	for _, row := range *next {
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
		total := 0
		for _, weight := range w {
			total += int(weight)
		}
		owned := countOwners(NewRendezvous().Primaries(w, Ordinary))
		if total == 0 {
			if owned[0] != forwarding.Rows {
				t.Fatalf("%d rows have an owner without any weight", forwarding.Rows-owned[0])
			}
			return
		}
		for node, weight := range w {
			down := int(weight) * forwarding.Rows / total
			if got := owned[node]; got < down*9/10 || got > (down+1)*11/10 {
				t.Errorf("node %d with weight %d of %d owns %d rows, want %d plus or minus 10 percent", node, weight, total, got, down)
			}
		}
	})
}

func countOwners(owners []forwarding.NodeID) map[forwarding.NodeID]int {
	owned := map[forwarding.NodeID]int{}
	for _, owner := range owners {
		owned[owner]++
	}
	return owned
}

// With one pod on each of many nodes, all nodes have rows, and none exceeds its share by more than a tenth or
// one row.
func TestManyNodesHaveEqualShares(t *testing.T) {
	for _, nodes := range []int{100, 1000, forwarding.Rows} {
		owned := countOwners(NewRendezvous().Primaries(equalWeights(nodes, 1), Ordinary))
		least, most := forwarding.Rows, 0
		for _, rows := range owned {
			least, most = min(least, rows), max(most, rows)
		}
		part := forwarding.Rows / nodes
		if len(owned) != nodes || least < part*9/10 || most > max(part+1, (part+1)*11/10) {
			t.Errorf("%d nodes: %d own rows, between %d and %d", nodes, len(owned), least, most)
		}
	}
}

// Removing a node or changing its pods moves few rows beyond the necessary ones, almost none in small clusters.
func TestChangesMoveFewRows(t *testing.T) {
	for _, c := range []struct {
		nodes int
		// most is the allowed number of moved rows relative to the necessary number.
		most float64
	}{{5, 1.01}, {20, 1.05}, {100, 2}, {1000, 10}} {
		r, before := NewRendezvous(), equalWeights(c.nodes, 3)
		old := r.Primaries(before, Ordinary)
		had := countOwners(old)
		moved, must := 0, 0
		for i := range 5 {
			node := forwarding.NodeID(1 + i*c.nodes/5)
			for _, after := range []weights{with(before, node, 0), with(before, node, 2), with(before, node, 4)} {
				next := r.Primaries(after, Ordinary)
				for row := range next {
					if next[row] != old[row] {
						moved++
					}
				}
				for node, rows := range countOwners(next) {
					must += max(0, rows-had[node])
				}
			}
		}
		t.Logf("%d nodes: %d rows moved, minimum %d", c.nodes, moved, must)
		if float64(moved) > c.most*float64(must) {
			t.Errorf("%d nodes: %d rows moved, minimum %d", c.nodes, moved, must)
		}
	}
}

func TestCacheDoesNotDecide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := genWeights(t)
		used := NewRendezvous()
		used.Primaries(genWeights(t), Ordinary)
		for node, weight := range w {
			used.Primaries(weights{node: weight}, Ordinary)
		}
		used.Evict(func(node forwarding.NodeID) bool { return node%2 == 0 })
		if !used.Advance(nil, Ordinary, w, everyNode).Equal(NewRendezvous().Advance(nil, Ordinary, w, everyNode)) {
			t.Fatal("the result depends on previous computations")
		}
	})
}
