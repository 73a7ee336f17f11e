// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

// rowsPerPod is the minimum number of rows per pod, which bounds the error of a pod's share to 1/32.
const rowsPerPod = 32

// podsPerNode is the number of pods counted per node. With more pods, the rounding of a node's rows is
// negligible.
const podsPerNode = 32

// minRows is the size of the smallest node table, sufficient for 16 pods.
const minRows = 512

// SizeFor returns the size of the node table of a frontend. It depends only on the weights and the VIP,
// because all nodes must compute the same size. Weights of a VIPRoute are not pod counts and do not affect
// the size.
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
	for size.Rows < forwarding.MaxRows && uint64(size.Rows) < rowsPerPod*pods {
		size.Rows *= 2
	}
	return size
}

func rowsIn(limits forwarding.Limits) int { return limits.NodeTables * forwarding.Rows }

// tableSlots allocates the lowest free slots of node tables, in units of forwarding.MinRows. A table is
// aligned to its number of rows. Slots in use at the start of the plan are never allocated, only retained by
// their owner.
type tableSlots struct {
	limit int
	have  map[forwarding.NodeTableSlot]*forwarding.NodeTable
	// used maps the start of each table outside of have to its end.
	used map[uint32]uint32
	// free is the lowest start of a possibly free slot; no table spans it.
	free, end uint32
}

const unitsOfBlock = forwarding.Rows / forwarding.MinRows

func newTableSlots(limit int, have map[forwarding.NodeTableSlot]*forwarding.NodeTable) *tableSlots {
	return &tableSlots{
		limit: limit, have: have, used: map[uint32]uint32{},
		free: unitsOfBlock, end: uint32(limit+1) * unitsOfBlock,
	}
}

func (s *tableSlots) use(slot forwarding.NodeTableSlot) {
	if slot == 0 || s.have[slot] != nil {
		return
	}
	first := slot.First() / forwarding.MinRows
	s.used[first] = max(s.used[first], first+uint32(slot.Rows()/forwarding.MinRows))
}

// retain reports whether the owner can retain a slot: whether the slot exists within the limit.
func (s *tableSlots) retain(slot forwarding.NodeTableSlot) bool { return slot.IsWithin(s.limit) }

// peek returns the lowest free slot of that many rows.
func (s *tableSlots) peek(rows int) (forwarding.NodeTableSlot, bool) {
	for s.free < s.end && s.after(s.free) != s.free {
		s.free = s.after(s.free)
	}
	units := uint32(rows / forwarding.MinRows)
	first := ceil(s.free, units)
	for at := s.free; first+units <= s.end; {
		if behind := s.after(at); behind != at {
			at, first = behind, ceil(behind, units)
		} else if at++; at == first+units {
			return forwarding.NodeTableSlotAt(first*forwarding.MinRows, rows), true
		}
	}
	return 0, false
}

func ceil(at, units uint32) uint32 { return (at + units - 1) / units * units }

func (s *tableSlots) allocate(rows int) (forwarding.NodeTableSlot, bool) {
	slot, found := s.peek(rows)
	if found {
		s.use(slot)
	}
	return slot, found
}

// after returns the end of the table that starts at a unit, or the unit itself if no table starts there.
func (s *tableSlots) after(at uint32) uint32 {
	behind := max(at, s.used[at])
	for units := uint32(1); units <= forwarding.MaxRows/forwarding.MinRows && at%units == 0; units *= 2 {
		if s.have[forwarding.NodeTableSlotAt(at*forwarding.MinRows, int(units)*forwarding.MinRows)] != nil {
			behind = max(behind, at+units)
		}
	}
	return behind
}
