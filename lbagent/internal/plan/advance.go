// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/binary"
	"maps"
	"slices"
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

// advance returns the table after the weights have become these (table.Rendezvous.Advance).
func (p *Planner) advance(
	old *forwarding.NodeTable, weights map[forwarding.NodeID]uint32, exists func(forwarding.NodeID) bool,
) *forwarding.NodeTable {
	from := origin{weak.Make(old), weightsText(weights)}
	if known := p.advances[from].Value(); known != nil {
		return known
	}
	p.advances.makeRoom(2*len(p.tables) + fewAdvances)
	next := p.rendezvous.Advance(old, weights, exists)
	p.advances[from] = weak.Make(next)
	return next
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
