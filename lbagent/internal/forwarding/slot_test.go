// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"testing"

	"pgregory.net/rapid"
)

func TestNodeTableSlot(t *testing.T) {
	for _, test := range []struct {
		slot             NodeTableSlot
		first            uint32
		rows, block, end int
		text             string
	}{
		{1, Rows, Rows, 1, 1, "1"},
		{NodeTableSlotAt(7*Rows, Rows), 7 * Rows, Rows, 7, 7, "7"},
		{NodeTableSlotAt(4*Rows, 4*Rows), 4 * Rows, 4 * Rows, 4, 7, "4 (16384 rows)"},
		{NodeTableSlotAt(3*Rows+5*MinRows, MinRows), 3*Rows + 5*MinRows, MinRows, 3, 3, "3.5 (128 rows)"},
	} {
		if s := test.slot; s.First() != test.first || s.Rows() != test.rows || s.Block() != test.block || s.String() != test.text {
			t.Errorf("%s: first row %d, %d rows, block %d; want %+v", s, s.First(), s.Rows(), s.Block(), test)
		}
		if !test.slot.IsWithin(test.end) || test.slot.IsWithin(test.end-1) {
			t.Errorf("%s does not end in block %d", test.slot, test.end)
		}
	}
	for name, slot := range map[string]NodeTableSlot{
		"none": 0, "in the block of none": NodeTableSlotAt(MinRows, MinRows), "too large": 1 | 5<<slotSize,
		"too small": 1 | 0xf0<<slotSize, "at an odd place": 2 | 1<<slotPart, "beyond the parts": 2 | 0x20<<slotPart,
	} {
		if slot.IsWithin(MaxNodeTableBlock) {
			t.Errorf("%s: %#x is a valid slot", name, uint32(slot))
		}
	}
}

func TestNodeTableSlotEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := MinRows << rapid.IntRange(0, 9).Draw(t, "size")
		unit := min(rows, Rows)
		first := uint32(rapid.IntRange(Rows/unit, MaxNodeTableBlock*Rows/unit).Draw(t, "place") * unit)
		slot := NodeTableSlotAt(first, rows)
		if slot.First() != first || slot.Rows() != rows {
			t.Fatalf("%s with %d rows from row %d: got %d rows from row %d", slot, rows, first, slot.Rows(), slot.First())
		}
		row := uint32(rapid.IntRange(0, rows-1).Draw(t, "row"))
		if got := slot.Row(row * uint32(1<<32/uint64(rows))); got != row {
			t.Fatalf("%s: the lowest hash of row %d selects row %d", slot, row, got)
		}
	})
}
