// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"fmt"
	"math/bits"
)

// NodeTableSlot names a node table by the place of its rows, as the program reads it. Zero means
// none. The lower 16 bits are a block of Rows rows, from 1 on; the next five a part of the block,
// in units of LeastRows; the upper eight the size as a signed power of two, times Rows. So the slot
// of a table of ordinary size is the number of its block.
type NodeTableSlot uint32

const (
	slotPart = 16
	slotSize = 24
	// slotParts is how many of the smallest tables a block has room for.
	slotParts = Rows / LeastRows
	// MaxNodeTableBlock is the highest block.
	MaxNodeTableBlock = 1<<slotPart - 1
)

// NodeTableSlotAt returns the slot of a table of so many rows, a power of two between LeastRows and
// MostRows, whose first one has the given index. That is a multiple of the rows, or of Rows where
// they are more.
func NodeTableSlotAt(first uint32, rows int) NodeTableSlot {
	size := bits.Len(uint(rows)) - bits.Len(uint(Rows))
	return NodeTableSlot(first/Rows | first%Rows/LeastRows<<slotPart | uint32(uint8(int8(size)))<<slotSize)
}

// Block is the block of Rows rows that the table is in, or begins with.
func (s NodeTableSlot) Block() int { return int(s & MaxNodeTableBlock) }

// Blocks is how many blocks a table has that is not smaller than one, else one.
func (s NodeTableSlot) Blocks() int { return max(s.Rows()/Rows, 1) }

// First is the index of its first row.
func (s NodeTableSlot) First() uint32 {
	return uint32(s.Block())*Rows + uint32(s)>>slotPart%slotParts*LeastRows
}

// Rows is how many rows it has; zero where it is no slot that NodeTableSlotAt returns.
func (s NodeTableSlot) Rows() int {
	size := int(int8(s >> slotSize))
	if size < bits.Len(uint(LeastRows))-bits.Len(uint(Rows)) || size > bits.Len(uint(MostRows))-bits.Len(uint(Rows)) {
		return 0
	}
	if size < 0 {
		return Rows >> -size
	}
	return Rows << size
}

// Row is the row that a hash picks.
func (s NodeTableSlot) Row(hash uint32) uint32 {
	return hash >> (32 + 1 - bits.Len(uint(s.Rows())))
}

// IsWithin reports whether it is a slot whose rows are all in the blocks from 1 to the given one.
func (s NodeTableSlot) IsWithin(blocks int) bool {
	rows := s.Rows()
	if rows == 0 || s.Block() == 0 || s>>slotPart%(1<<(slotSize-slotPart)) >= slotParts {
		return false
	}
	return int(s.First())%min(rows, Rows) == 0 && s.Block()+s.Blocks()-1 <= blocks
}

// String says where the table is and, unless it has the ordinary size, how many rows it has.
func (s NodeTableSlot) String() string {
	switch rows := s.Rows(); {
	case rows == Rows:
		return fmt.Sprintf("%d", uint32(s))
	case rows > Rows:
		return fmt.Sprintf("%d (%d rows)", s.Block(), rows)
	default:
		return fmt.Sprintf("%d.%d (%d rows)", s.Block(), int(s)>>slotPart%slotParts, rows)
	}
}
