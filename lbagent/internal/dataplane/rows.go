// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"

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
	keys := make([]uint32, len(op.Rows))
	updates := make([]bpf.DatapathRowUpdate, len(op.Rows))
	for i, row := range op.Changed {
		if row >= forwarding.Rows {
			return failure(bpf.DatapathMapRows, op.Slot, fmt.Errorf("row %d of %d", row, forwarding.Rows))
		}
		keys[i] = uint32(i)
		updates[i] = bpf.DatapathRowUpdate{Row: row, Path: encodeRow(op.Rows[i]).Path}
	}
	if _, err := d.maps.RowUpdates.BatchUpdate(keys, updates, nil); err != nil {
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

func (d *Dataplane) clearTable(slot forwarding.NodeTableSlot) error {
	op := forwarding.PutRows{Slot: slot, Fresh: true, Rows: make([]forwarding.Row, forwarding.Rows)}
	for i := range op.Rows {
		op.Changed = append(op.Changed, uint32(i))
	}
	return d.writeRows(op)
}
