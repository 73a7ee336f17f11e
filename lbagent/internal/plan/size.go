// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// rowsPerPod is how many rows a node table has for each pod, at least. So the share of a pod is right
// to a 32nd.
const rowsPerPod = 32

// podsPerNode is how many pods of each node count. With more of them the rounding of a node's rows is
// next to nothing.
const podsPerNode = 32

// RowsFor returns how many rows the node table of a frontend has. All nodes must come to the same: so
// it depends on the weights alone. Those of a VIPRoute are no numbers of pods, and say nothing of a
// size.
func RowsFor(f *model.Frontend) int {
	rows := forwarding.Rows
	if len(f.Backends) > 0 {
		return rows
	}
	pods := uint64(0)
	for _, weight := range f.Weights {
		pods += uint64(weight)
	}
	pods = min(pods, podsPerNode*uint64(len(f.Weights)))
	for rows < forwarding.MostRows && uint64(rows) < rowsPerPod*pods {
		rows *= 2
	}
	return rows
}

// blocksFor is how many blocks of the map of rows the node table of a frontend takes.
func blocksFor(f *model.Frontend) int { return RowsFor(f) / forwarding.Rows }

// tableSlots give out the lowest free slots of node tables. A table of several blocks begins at a
// multiple of them. A block that was in use when the plan began is never given out, only kept by
// whose it was.
type tableSlots struct {
	limit int
	have  map[forwarding.NodeTableSlot]*forwarding.NodeTable
	// used are blocks that are not free, beside those of have.
	used map[int]struct{}
	// free is the lowest block that may be free.
	free int
}

func newTableSlots(limit int, have map[forwarding.NodeTableSlot]*forwarding.NodeTable) *tableSlots {
	return &tableSlots{limit: limit, have: have, used: map[int]struct{}{}, free: 1}
}

// use marks the blocks of a slot as not free; zero is no slot.
func (s *tableSlots) use(slot forwarding.NodeTableSlot) {
	if slot == 0 || s.have[slot] != nil {
		return
	}
	for i := range slot.Blocks() {
		s.used[slot.Block()+i] = struct{}{}
	}
}

// keep leaves a slot to whose it was; false where it is none or beyond the limit.
func (s *tableSlots) keep(slot forwarding.NodeTableSlot) bool { return slot.IsWithin(s.limit) }

// peek returns the lowest free slot for so many blocks, a power of two; false where none is.
func (s *tableSlots) peek(blocks int) (forwarding.NodeTableSlot, bool) {
	for ; s.free <= s.limit && !s.isFree(s.free); s.free++ {
	}
	for first := (s.free + blocks - 1) / blocks * blocks; first+blocks-1 <= s.limit; first += blocks {
		free := 0
		for free < blocks && s.isFree(first+free) {
			free++
		}
		if free == blocks {
			return forwarding.NodeTableSlotAt(uint32(first)*forwarding.Rows, blocks*forwarding.Rows), true
		}
	}
	return 0, false
}

// take gives out the lowest free slot for so many blocks; false where none is.
func (s *tableSlots) take(blocks int) (forwarding.NodeTableSlot, bool) {
	slot, found := s.peek(blocks)
	if found {
		s.use(slot)
	}
	return slot, found
}

// isFree reports whether no table has the block.
func (s *tableSlots) isFree(block int) bool {
	if _, used := s.used[block]; used {
		return false
	}
	for rows := forwarding.Rows; rows <= forwarding.MostRows; rows *= 2 {
		first := block - block%(rows/forwarding.Rows)
		if s.have[forwarding.NodeTableSlotAt(uint32(first)*forwarding.Rows, rows)] != nil {
			return false
		}
	}
	return true
}
