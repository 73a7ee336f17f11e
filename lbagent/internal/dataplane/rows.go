// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// writeRows has the rows written by a program of ours, which marks those whose
// primary changes with the kernel's time and keeps what the attached programs
// have marked.
func (d *Dataplane) writeRows(op forwarding.PutRows) error {
	if err := checkIndex(bpf.DatapathMapRows, op.Slot, d.limits.NodeTables); err != nil {
		return err
	}
	if len(op.Changed) != len(op.Rows) || len(op.Rows) > forwarding.Rows {
		return failure(bpf.DatapathMapRows, op.Slot, fmt.Errorf("%d row numbers for %d rows", len(op.Changed), len(op.Rows)))
	}
	if len(op.Rows) == 0 {
		return nil
	}
	updates := d.rowUpdates[:0]
	for i, row := range op.Changed {
		if row >= forwarding.Rows {
			return failure(bpf.DatapathMapRows, op.Slot, fmt.Errorf("row %d of %d", row, forwarding.Rows))
		}
		updates = appendRowUpdate(updates, bpf.DatapathRowUpdate{Row: row, Path: encodeRow(op.Rows[i]).Path})
	}
	d.rowUpdates = updates
	memory, err := d.maps.RowUpdates.Memory()
	if err == nil {
		_, err = memory.WriteAt(updates, 0)
	}
	if err != nil {
		return failure(bpf.DatapathMapRowUpdates, op.Slot, err)
	}
	d.rowsWritten = true
	request := bpf.DatapathRowsWrite{First: uint32(op.Slot) * forwarding.Rows, Count: uint32(len(op.Rows))}
	if op.Fresh {
		request.Fresh = 1
	}
	if !d.joined {
		request.Newcomer = 1
	}
	written, err := d.programs.WriteRows.Run(&ebpf.RunOptions{Context: request})
	if err == nil && written != request.Count {
		err = errors.New("the kernel stopped before all were written")
	}
	if err != nil {
		return failure(bpf.DatapathMapRows, op.Slot, fmt.Errorf("write %d rows: %w", request.Count, err))
	}
	return nil
}

// readTables has a program of ours read the tables. Those with the same rows become one, as the
// planner makes them.
func (d *Dataplane) readTables(tables map[forwarding.NodeTableSlot]*forwarding.NodeTable) error {
	seed, known := maphash.MakeSeed(), map[uint64]*forwarding.NodeTable{}
	rows := make([]byte, forwarding.Rows*rowUpdateSize)
	for slot, table := range tables {
		if err := d.readRows(slot, rows); err != nil {
			return err
		}
		for i := range table {
			table[i] = decodeRow(bpf.DatapathRow{Path: binary.NativeEndian.Uint64(rows[i*rowUpdateSize+8:])})
		}
		sum := maphash.Bytes(seed, rows)
		if same := known[sum]; same != nil && *same == *table {
			tables[slot] = same
		} else {
			known[sum] = table
		}
	}
	return nil
}

// readRows has the rows of a table read into row_updates, and copies them.
func (d *Dataplane) readRows(slot forwarding.NodeTableSlot, rows []byte) error {
	request := bpf.DatapathRowsRead{First: uint32(slot) * forwarding.Rows, Count: forwarding.Rows}
	read, err := d.programs.ReadRows.Run(&ebpf.RunOptions{Context: request})
	if err == nil && read != request.Count {
		err = errors.New("the kernel stopped before all were read")
	}
	if err != nil {
		return failure(bpf.DatapathMapRows, slot, fmt.Errorf("read %d rows: %w", request.Count, err))
	}
	memory, err := d.maps.RowUpdates.Memory()
	if err == nil {
		_, err = memory.ReadAt(rows, 0)
	}
	if err != nil {
		return failure(bpf.DatapathMapRowUpdates, slot, err)
	}
	return nil
}

// rowUpdateSize is that of a row_update in the map's memory: the row's number, four bytes that say
// nothing, and its path.
const rowUpdateSize = 16

func appendRowUpdate(b []byte, update bpf.DatapathRowUpdate) []byte {
	b = binary.NativeEndian.AppendUint32(b, update.Row)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return binary.NativeEndian.AppendUint64(b, update.Path)
}

func (d *Dataplane) clearTable(slot forwarding.NodeTableSlot) error {
	op := forwarding.PutRows{Slot: slot, Fresh: true, Rows: make([]forwarding.Row, forwarding.Rows)}
	for i := range op.Rows {
		op.Changed = append(op.Changed, uint32(i))
	}
	return d.writeRows(op)
}
