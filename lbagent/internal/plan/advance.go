// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/binary"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// advances are tables by what they were computed from. Service ports whose endpoints are on the
// same nodes so have one table between them, which takes 40 kB and a tenth of a millisecond.
type advances map[origin]weak.Pointer[forwarding.NodeTable]

// origin is what a table is computed from, beside the nodes that exist.
type origin struct {
	// old is the table as it was; zero where there was none.
	old     weak.Pointer[forwarding.NodeTable]
	weights string
}

// step is how a table goes on: old is nil where there was none.
type step struct {
	old     *forwarding.NodeTable
	weights map[forwarding.NodeID]uint32
}

// advanceAll returns the tables after these steps (table.Rendezvous.Advance). Different ones are
// computed at once on all processors: a first plan has thousands.
func (p *Planner) advanceAll(
	steps map[forwarding.NodeTableSlot]step, exists func(forwarding.NodeID) bool,
) map[forwarding.NodeTableSlot]*forwarding.NodeTable {
	origins := make(map[forwarding.NodeTableSlot]origin, len(steps))
	tables := make(map[origin]*forwarding.NodeTable, len(steps))
	var fresh []origin
	for slot, step := range steps {
		from := origin{weak.Make(step.old), weightsText(step.weights)}
		origins[slot] = from
		if _, found := tables[from]; found {
			continue
		}
		if tables[from] = p.advances[from].Value(); tables[from] == nil {
			fresh = append(fresh, from)
			p.rendezvous.See(step.weights)
		}
	}
	of := make(map[origin]step, len(fresh))
	for slot, from := range origins {
		of[from] = steps[slot]
	}
	next := make([]*forwarding.NodeTable, len(fresh))
	atOnce(len(fresh), func(i int) {
		step := of[fresh[i]]
		next[i] = p.rendezvous.Advance(step.old, step.weights, exists)
	})
	for i, from := range fresh {
		p.advances.makeRoom(2*len(p.tables) + fewAdvances)
		tables[from], p.advances[from] = next[i], weak.Make(next[i])
	}
	advanced := make(map[forwarding.NodeTableSlot]*forwarding.NodeTable, len(steps))
	for slot, from := range origins {
		advanced[slot] = tables[from]
	}
	return advanced
}

// atOnce does so many things on all processors.
func atOnce(count int, do func(i int)) {
	var workers sync.WaitGroup
	var taken atomic.Int64
	for range min(count, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := taken.Add(1); i <= int64(count); i = taken.Add(1) {
				do(int(i - 1))
			}
		})
	}
	workers.Wait()
}

// weightsText is the same for the same weights alone.
func weightsText(weights map[forwarding.NodeID]uint32) string {
	text := make([]byte, 0, 6*len(weights))
	for _, id := range slices.Sorted(maps.Keys(weights)) {
		text = binary.BigEndian.AppendUint16(text, uint16(id))
		text = binary.BigEndian.AppendUint32(text, weights[id])
	}
	return string(text)
}

// fewAdvances are kept however few tables there are.
const fewAdvances = 1024

// makeRoom forgets the tables that nobody has any more where there are too many, and all where that
// is not enough: they are computed again.
func (a advances) makeRoom(most int) {
	if len(a) < most {
		return
	}
	maps.DeleteFunc(a, func(_ origin, table weak.Pointer[forwarding.NodeTable]) bool { return table.Value() == nil })
	if len(a) > most/2 {
		clear(a)
	}
}
