// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"fmt"
	"math/bits"
)

// NodeTableSlot encodes the position and size of a node table for the BPF program; zero means no table. Bits
// 0-15 are a block of Rows rows, from 1; bits 16-20 the offset in the block in units of MinRows; bits 24-31
// the size as a signed power of two times Rows. The slot of an ordinary table is thus its block number.
type NodeTableSlot uint32

// Layout of slots of node tables.
const (
	slotPart          = 16
	slotSize          = 24
	slotParts         = Rows / MinRows
	MaxNodeTableBlock = 1<<slotPart - 1
)

// NodeTableSlotAt returns the slot of a table with that number of rows, a power of two between MinRows and
// MaxRows, that starts at row first. first must be a multiple of min(rows, Rows).
func NodeTableSlotAt(first uint32, rows int) NodeTableSlot {
	size := bits.Len(uint(rows)) - bits.Len(uint(Rows))
	return NodeTableSlot(first/Rows | first%Rows/MinRows<<slotPart | uint32(uint8(int8(size)))<<slotSize)
}

// Block returns the first block of the table.
func (s NodeTableSlot) Block() int { return int(s & MaxNodeTableBlock) }

// Blocks returns the number of blocks that the table overlaps.
func (s NodeTableSlot) Blocks() int { return max(s.Rows()/Rows, 1) }

// First returns the index of the first row.
func (s NodeTableSlot) First() uint32 {
	return uint32(s.Block())*Rows + uint32(s)>>slotPart%slotParts*MinRows
}

// Rows returns the number of rows; zero for an invalid slot.
func (s NodeTableSlot) Rows() int {
	size := int(int8(s >> slotSize))
	if size < bits.Len(uint(MinRows))-bits.Len(uint(Rows)) || size > bits.Len(uint(MaxRows))-bits.Len(uint(Rows)) {
		return 0
	}
	if size < 0 {
		return Rows >> -size
	}
	return Rows << size
}

// Row returns the row selected by a hash.
func (s NodeTableSlot) Row(hash uint32) uint32 {
	return hash >> (32 + 1 - bits.Len(uint(s.Rows())))
}

// IsWithin reports whether the slot is valid and its rows are in blocks 1 to blocks.
func (s NodeTableSlot) IsWithin(blocks int) bool {
	rows := s.Rows()
	if rows == 0 || s.Block() == 0 || s>>slotPart%(1<<(slotSize-slotPart)) >= slotParts {
		return false
	}
	return int(s.First())%min(rows, Rows) == 0 && s.Block()+s.Blocks()-1 <= blocks
}

// String returns the position and, unless it is ordinary, the number of rows.
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
