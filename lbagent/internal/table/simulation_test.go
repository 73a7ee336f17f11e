// SPDX-License-Identifier: Apache-2.0

package table

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// broken applies the steps and returns the share of surviving connections that become unreachable. Each of
// 4,096 hashes has one connection, held by the row's owner at the first step. It survives while that node has
// an endpoint, and is unreachable while the node is neither the row's primary nor in the chain's first entries.
func broken(steps []weights, chain int, sizeOf func(weights) Size) float64 {
	const connections = forwarding.Rows
	r := NewRendezvous()
	table := r.Advance(nil, sizeOf(steps[0]), steps[0], everyNode)
	rowOf := func(connection int) forwarding.Row { return (*table)[connection*len(*table)/connections] }
	var holders [connections]forwarding.NodeID
	lost := map[int]bool{}
	live := 0
	for connection := range holders {
		holder := rowOf(connection).Primary
		if slices.ContainsFunc(steps, func(w weights) bool { return w[holder] == 0 }) {
			continue
		}
		holders[connection] = holder
		live++
	}
	for _, w := range steps[1:] {
		table = r.Advance(table, sizeOf(w), w, everyNode)
		for connection, holder := range holders {
			now := rowOf(connection)
			if holder != 0 && now.Primary != holder && !slices.Contains(now.Chain[:chain], holder) {
				lost[connection] = true
			}
		}
	}
	return float64(len(lost)) / float64(live)
}

func ordinary(weights) Size { return Ordinary }

// sized is 512 rows, or 32 per pod.
func sized(w weights) Size {
	size, pods := Size{512, 512}, uint32(0)
	for _, weight := range w {
		pods += weight
	}
	for size.Rows < 32*int(pods) {
		size.Rows *= 2
	}
	return size
}

func with(w weights, node forwarding.NodeID, weight uint32) weights {
	next := maps.Clone(w)
	next[node] = weight
	return next
}

// The changes in docs/design.md on 20 nodes, with the share of broken connections with the full chain and
// without any.
func TestChainKeepsConnections(t *testing.T) {
	base := equalWeights(20, 3)
	random := rand.New(rand.NewPCG(7, 7))
	anyNode := func() forwarding.NodeID { return forwarding.NodeID(1 + random.IntN(20)) }

	first := weights{}
	for id := forwarding.NodeID(1); id <= 10; id++ {
		first[id] = 1
	}
	grow := []weights{first}
	for range 90 {
		last, node := grow[len(grow)-1], anyNode()
		grow = append(grow, with(last, node, last[node]+1))
	}
	rolling := []weights{base}
	for range 60 {
		last, node := rolling[len(rolling)-1], anyNode()
		more := with(last, node, last[node]+1)
		heaviest := forwarding.NodeID(1)
		for id := range forwarding.NodeID(20) {
			if more[id+1] > more[heaviest] {
				heaviest = id + 1
			}
		}
		rolling = append(rolling, more, with(more, heaviest, more[heaviest]-1))
	}
	shrink := []weights{equalWeights(20, 5)}
	for len(shrink) <= 80 {
		last, node := shrink[len(shrink)-1], anyNode()
		if last[node] > 1 {
			shrink = append(shrink, with(last, node, last[node]-1))
		}
	}

	cases := []struct {
		name  string
		steps []weights
		// most and mostSized are the maximum share with the chain, in ordinary and in sized tables; without is
		// the minimum share with primaries only.
		most, mostSized, without float64
	}{
		{"one node added", []weights{base, with(base, 21, 3)}, 0, 0, 0.03},
		{"one node drained", []weights{base, with(base, 1, 0)}, 0, 0, 0},
		{"one pod added", []weights{base, with(base, 1, 4)}, 0, 0, 0.01},
		{"10 to 100 pods one by one", grow, 0.05, 0.07, 0.5},
		{"10 to 100 pods in one step", []weights{grow[0], grow[len(grow)-1]}, 0, 0, 0.4},
		{"rolling update of 60 pods", rolling, 0, 0, 0.15},
		{"100 to 20 pods one by one", shrink, 0.02, 0.05, 0.35},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			whole, none := broken(c.steps, forwarding.ChainLength, ordinary), broken(c.steps, 0, ordinary)
			bySize := broken(c.steps, forwarding.ChainLength, sized)
			t.Logf("%.2f%% of the connections break, %.2f%% with tables sized by pods, %.2f%% without a chain",
				whole*100, bySize*100, none*100)
			if whole > c.most || bySize > c.mostSized {
				t.Errorf("%.2f%% and %.2f%% break, want at most %.2f%% and %.2f%%", whole*100, bySize*100, c.most*100, c.mostSized*100)
			}
			if none < c.without {
				t.Errorf("%.2f%% of the connections break without a chain, want at least %.2f%%: the test case is invalid", none*100, c.without*100)
			}
		})
	}
}
