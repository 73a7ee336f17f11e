// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
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
	if err := d.requestRows(updates); err != nil {
		return failure(bpf.DatapathMapRows, op.Slot, err)
	}
	d.rowsWritten = true
	request := bpf.DatapathRowsWrite{First: uint32(op.Slot) * forwarding.Rows, Count: uint32(len(op.Rows))}
	if op.Fresh {
		request.Fresh = 1
	}
	if !d.joined {
		request.Newcomer = 1
	}
	if err := runForRows(d.programs.WriteRows, request, request.Count); err != nil {
		return failure(bpf.DatapathMapRows, op.Slot, err)
	}
	return nil
}

// pathSize is that of a row's path.
const pathSize = 8

// readRows has a program of ours read the rows of a table, and gives their paths, one after
// another.
func (d *Dataplane) readRows(slot forwarding.NodeTableSlot, paths []byte) error {
	request := bpf.DatapathRowsRead{First: uint32(slot) * forwarding.Rows, Count: forwarding.Rows}
	if err := runForRows(d.programs.ReadRows, request, request.Count); err != nil {
		return failure(bpf.DatapathMapRows, slot, err)
	}
	rows := make([]byte, forwarding.Rows*rowUpdateSize)
	if err := d.copyRows(rows); err != nil {
		return err
	}
	for i := range forwarding.Rows {
		copy(paths[i*pathSize:(i+1)*pathSize], rows[i*rowUpdateSize+rowUpdatePath:])
	}
	return nil
}

func decodeRows(paths []byte, table forwarding.NodeTable) {
	for i := range table {
		table[i] = decodeRow(bpf.DatapathRow{Path: binary.NativeEndian.Uint64(paths[i*pathSize:])})
	}
}

// tableSet has each of the tables with different rows once, as the planner makes them.
type tableSet struct {
	seed    maphash.Seed
	tables  map[uint64]*forwarding.NodeTable
	scratch forwarding.NodeTable
}

func newTableSet() *tableSet {
	return &tableSet{
		seed: maphash.MakeSeed(), tables: map[uint64]*forwarding.NodeTable{}, scratch: *forwarding.NewNodeTable(),
	}
}

// find returns the table of the set that has these paths, which takes no memory where there is one.
func (s *tableSet) find(paths []byte) *forwarding.NodeTable {
	sum := maphash.Bytes(s.seed, paths)
	decodeRows(paths, s.scratch)
	same := s.tables[sum]
	if !same.Equal(&s.scratch) {
		same = s.scratch.Clone()
		s.tables[sum] = same
	}
	return same
}

// copyRows copies what the programs have found.
func (d *Dataplane) copyRows(rows []byte) error {
	memory, err := d.maps.RowUpdates.Memory()
	if err == nil {
		_, err = memory.ReadAt(rows, 0)
	}
	if err != nil {
		return fmt.Errorf("read map %s: %w", bpf.DatapathMapRowUpdates, err)
	}
	return nil
}

// requestRows tells the programs what to write.
func (d *Dataplane) requestRows(updates []byte) error {
	d.rowUpdates = updates
	memory, err := d.maps.RowUpdates.Memory()
	if err == nil {
		_, err = memory.WriteAt(updates, 0)
	}
	if err != nil {
		return fmt.Errorf("write map %s: %w", bpf.DatapathMapRowUpdates, err)
	}
	return nil
}

// runForRows runs a program that says for how many rows it did what it is for.
func runForRows(program *ebpf.Program, request any, count uint32) error {
	done, err := program.Run(&ebpf.RunOptions{Context: request})
	if err == nil && done != count {
		err = fmt.Errorf("the kernel stopped after %d", done)
	}
	if err != nil {
		return fmt.Errorf("have a program write or read %d rows: %w", count, err)
	}
	return nil
}

// writeEndpointTable has the table written by a program of ours, which takes a twentieth of the
// time of a batch.
func (d *Dataplane) writeEndpointTable(slot forwarding.EndpointTableSlot, table *forwarding.EndpointTable) error {
	if err := checkIndex(bpf.DatapathMapEndpointRows, slot, d.limits.EndpointTables); err != nil {
		return err
	}
	updates := d.rowUpdates[:0]
	for _, id := range table {
		updates = appendRowUpdate(updates, bpf.DatapathRowUpdate{Row: uint32(id)})
	}
	if err := d.requestRows(updates); err != nil {
		return failure(bpf.DatapathMapEndpointRows, slot, err)
	}
	request := bpf.DatapathRowsRead{First: uint32(slot) * forwarding.EndpointRows, Count: forwarding.EndpointRows}
	if err := runForRows(d.programs.WriteEndpointRows, request, request.Count); err != nil {
		return failure(bpf.DatapathMapEndpointRows, slot, err)
	}
	return nil
}

// readEndpointTable has a program of ours read the table.
func (d *Dataplane) readEndpointTable(slot forwarding.EndpointTableSlot, table *forwarding.EndpointTable) error {
	rows := make([]byte, forwarding.EndpointRows*rowUpdateSize)
	request := bpf.DatapathRowsRead{First: uint32(slot) * forwarding.EndpointRows, Count: forwarding.EndpointRows}
	err := runForRows(d.programs.ReadEndpointRows, request, request.Count)
	if err == nil {
		err = d.copyRows(rows)
	}
	if err != nil {
		return failure(bpf.DatapathMapEndpointRows, slot, err)
	}
	for i := range table {
		table[i] = forwarding.EndpointID(binary.NativeEndian.Uint32(rows[i*rowUpdateSize:]))
	}
	return nil
}

// rowUpdateSize is that of a row_update in the map's memory: the row's number, four bytes that say
// nothing, and its path.
const (
	rowUpdateSize = 16
	rowUpdatePath = 8
)

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
