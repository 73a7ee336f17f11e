// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

// rowsPerPod is how many rows a node table has for each pod, at least. So the share of a pod is right
// to a 32nd.
const rowsPerPod = 32

// podsPerNode is how many pods of each node count. With more of them the rounding of a node's rows is
// next to nothing.
const podsPerNode = 32

// minRows is the size of the smallest node table, which has room for the shares of 16 pods.
const minRows = 512

// SizeFor returns the size of the node table of a frontend. All nodes must come to the same: so it
// depends on the weights and the VIP alone. The weights of a VIPRoute are no numbers of pods, and say
// nothing of a size.
func SizeFor(f *model.Frontend) table.Size {
	if len(f.Backends) > 0 {
		return table.Ordinary
	}
	size := table.Size{Rows: minRows, Ranked: minRows}
	pods := uint64(0)
	for _, weight := range f.Weights {
		pods += uint64(weight)
	}
	pods = min(pods, podsPerNode*uint64(len(f.Weights)))
	for size.Rows < forwarding.MostRows && uint64(size.Rows) < rowsPerPod*pods {
		size.Rows *= 2
	}
	return size
}

// rowsIn is how many rows there are room for.
func rowsIn(limits forwarding.Limits) int { return limits.NodeTables * forwarding.Rows }

// tableSlots give out the lowest free slots of node tables. A table begins at a multiple of its rows,
// or of a block where it has more. What was in use when the plan began is never given out, only kept by
// whose it was.
//
// Places are in units of forwarding.LeastRows.
type tableSlots struct {
	limit int
	have  map[forwarding.NodeTableSlot]*forwarding.NodeTable
	// used are tables that are not free, beside those of have: where they begin and end.
	used map[uint32]uint32
	// free is where the first table begins that may be free. No table begins before it and ends behind.
	free, end uint32
}

const unitsOfBlock = forwarding.Rows / forwarding.LeastRows

func newTableSlots(limit int, have map[forwarding.NodeTableSlot]*forwarding.NodeTable) *tableSlots {
	return &tableSlots{
		limit: limit, have: have, used: map[uint32]uint32{},
		free: unitsOfBlock, end: uint32(limit+1) * unitsOfBlock,
	}
}

// use marks a slot as not free; zero is no slot.
func (s *tableSlots) use(slot forwarding.NodeTableSlot) {
	if slot == 0 || s.have[slot] != nil {
		return
	}
	first := slot.First() / forwarding.LeastRows
	s.used[first] = max(s.used[first], first+uint32(slot.Rows()/forwarding.LeastRows))
}

// keep leaves a slot to whose it was; false where it is none or beyond the limit.
func (s *tableSlots) keep(slot forwarding.NodeTableSlot) bool { return slot.IsWithin(s.limit) }

// peek returns the lowest free slot for so many rows; false where none is.
func (s *tableSlots) peek(rows int) (forwarding.NodeTableSlot, bool) {
	for s.free < s.end && s.behind(s.free) != s.free {
		s.free = s.behind(s.free)
	}
	units := uint32(rows / forwarding.LeastRows)
	first := ceil(s.free, units)
	for at := s.free; first+units <= s.end; {
		if behind := s.behind(at); behind != at {
			at, first = behind, ceil(behind, units)
		} else if at++; at == first+units {
			return forwarding.NodeTableSlotAt(first*forwarding.LeastRows, rows), true
		}
	}
	return 0, false
}

// ceil returns the next multiple of units.
func ceil(at, units uint32) uint32 { return (at + units - 1) / units * units }

// take gives out the lowest free slot for so many rows; false where none is.
func (s *tableSlots) take(rows int) (forwarding.NodeTableSlot, bool) {
	slot, found := s.peek(rows)
	if found {
		s.use(slot)
	}
	return slot, found
}

// behind is where the table ends that begins at a place; the place itself where none does.
func (s *tableSlots) behind(at uint32) uint32 {
	behind := max(at, s.used[at])
	for units := uint32(1); units <= forwarding.MostRows/forwarding.LeastRows && at%units == 0; units *= 2 {
		if s.have[forwarding.NodeTableSlotAt(at*forwarding.LeastRows, int(units)*forwarding.LeastRows)] != nil {
			behind = max(behind, at+units)
		}
	}
	return behind
}
