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

// writeRows writes rows by a BPF program, which stamps rows whose primary changes with the kernel's time and
// preserves the flags set by the attached programs.
func (d *Dataplane) writeRows(op forwarding.PutRows) error {
	if err := d.checkTable(op.Slot); err != nil {
		return err
	}
	if len(op.Changed) != len(op.Rows) || op.Fresh && len(op.Rows) != op.Slot.Rows() {
		return failure(bpf.DatapathMapRows, op.Slot, fmt.Errorf("%d row numbers for %d rows", len(op.Changed), len(op.Rows)))
	}
	overridden := false
	if op.Previous != 0 {
		var err error
		if overridden, err = d.mayHaveOverrides(); err != nil {
			return failure(bpf.DatapathMapRows, op.Slot, err)
		}
	}
	for first := 0; first < len(op.Rows); first += rowsPerRun {
		end := min(first+rowsPerRun, len(op.Rows))
		if err := d.writeSomeRows(op, op.Changed[first:end], op.Rows[first:end], overridden); err != nil {
			return failure(bpf.DatapathMapRows, op.Slot, err)
		}
	}
	return nil
}

// mayHaveOverrides reports whether this node may have any override. Overrides cannot be counted per table
// cheaply: a row whose overrides name its primary has no bit.
func (d *Dataplane) mayHaveOverrides() (bool, error) {
	learned, err := d.learned()
	return !d.swept.ended || d.swept.left != 0 || d.swept.learned != learned, err
}

func (d *Dataplane) checkTable(slot forwarding.NodeTableSlot) error {
	if slot.IsWithin(d.limits.NodeTables) {
		return nil
	}
	err := errors.New("invalid table slot")
	if slot.IsWithin(maxNodeTables) {
		err = fmt.Errorf("%w: the limit is %d", ErrFull, d.limits.NodeTables)
	}
	return failure(bpf.DatapathMapRows, slot, err)
}

// rowsPerRun is the number of rows per run of a program.
const rowsPerRun = forwarding.Rows

func (d *Dataplane) writeSomeRows(op forwarding.PutRows, changed []uint32, rows []forwarding.Row, overridden bool) error {
	all, first := uint32(op.Slot.Rows()), uint32(0)
	if op.Fresh {
		// The program clears the timestamps of this number of rows, starting at the first.
		first = changed[0]
	}
	updates := d.rowUpdates[:0]
	for i, row := range changed {
		if row >= all {
			return fmt.Errorf("row %d of %d", row, all)
		}
		updates = appendRowUpdate(updates, bpf.DatapathRowUpdate{Row: row - first, Path: encodeRow(rows[i]).Path})
	}
	if err := d.requestRows(updates); err != nil {
		return err
	}
	d.rowsWritten = true
	request := bpf.DatapathRowsWrite{First: op.Slot.First() + first, Count: uint32(len(rows))}
	if op.Fresh {
		request.Fresh = 1
	}
	if !d.everAttached {
		request.Newcomer = 1
	}
	if overridden {
		request.Overridden = 1
	}
	return runForRows(d.programs.WriteRows, request, request.Count)
}

const pathSize = 8

func (d *Dataplane) readRows(slot forwarding.NodeTableSlot, paths []byte) error {
	all := slot.Rows()
	for first := 0; first < all; first += rowsPerRun {
		count := min(rowsPerRun, all-first)
		request := bpf.DatapathRowsRead{First: slot.First() + uint32(first), Count: uint32(count)}
		if err := runForRows(d.programs.ReadRows, request, request.Count); err != nil {
			return failure(bpf.DatapathMapRows, slot, err)
		}
		rows := make([]byte, count*rowUpdateSize)
		if err := d.copyRows(rows); err != nil {
			return err
		}
		for i := range count {
			copy(paths[(first+i)*pathSize:][:pathSize], rows[i*rowUpdateSize+rowUpdatePath:])
		}
	}
	return nil
}

func decodeRows(paths []byte, table forwarding.NodeTable) {
	for i := range table {
		table[i] = decodeRow(bpf.DatapathRow{Path: binary.NativeEndian.Uint64(paths[i*pathSize:])})
	}
}

type tableSet struct {
	seed    maphash.Seed
	tables  map[uint64]*forwarding.NodeTable
	scratch forwarding.NodeTable
}

func newTableSet() *tableSet {
	return &tableSet{
		seed: maphash.MakeSeed(), tables: map[uint64]*forwarding.NodeTable{}, scratch: *forwarding.NewSizedNodeTable(forwarding.MaxRows),
	}
}

// find returns the table with these paths. It allocates only for a new one.
func (s *tableSet) find(paths []byte) *forwarding.NodeTable {
	sum := maphash.Bytes(s.seed, paths)
	read := s.scratch[:len(paths)/pathSize]
	decodeRows(paths, read)
	same := s.tables[sum]
	if !same.Equal(&read) {
		same = read.Clone()
		s.tables[sum] = same
	}
	return same
}

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

func runForRows(program *ebpf.Program, request any, count uint32) error {
	done, err := program.Run(&ebpf.RunOptions{Context: request})
	if err == nil && done != count {
		err = fmt.Errorf("the kernel stopped after %d", done)
	}
	if err != nil {
		return fmt.Errorf("run the program that writes or reads %d rows: %w", count, err)
	}
	return nil
}

// writeEndpointTable writes the table by a BPF program, which takes a twentieth of the time of a batch.
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

// rowUpdateSize is the size of a row_update in bytes: the row's number, four bytes of padding, and its path.
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
	op := forwarding.PutRows{Slot: slot, Fresh: true, Rows: make([]forwarding.Row, slot.Rows())}
	for i := range op.Rows {
		op.Changed = append(op.Changed, uint32(i))
	}
	return d.writeRows(op)
}
