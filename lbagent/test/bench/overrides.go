// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

// marks are the maps of moved rows and of overrides. The bench writes them directly, because learning a
// million overrides from packets would take minutes.
type marks struct {
	rows, rowGroups, heartbeat *ebpf.Map
	overrides                  *rig.Overrides
}

// Marks of a row (bpf/src/row.h).
const (
	rowMoved      = 1 << 62
	rowOverridden = 1 << 63
)

func (w *world) openMarks() error {
	var errs []error
	open := func(name string) *ebpf.Map {
		m, err := w.Map(name)
		errs = append(errs, err)
		return m
	}
	w.marks.rows, w.marks.rowGroups = open(bpf.DatapathMapRows), open(bpf.DatapathMapRowGroups)
	w.marks.heartbeat = open(bpf.DatapathMapHopLease)
	var err error
	w.marks.overrides, err = w.Overrides()
	return errors.Join(append(errs, err)...)
}

// ticks renews the lease and returns the kernel time in the maps' unit.
func (w *world) ticks() (uint32, error) {
	if err := w.Plane.RenewLease(); err != nil {
		return 0, err
	}
	var now uint64
	if err := w.marks.heartbeat.Lookup(uint32(0), &now); err != nil {
		return 0, fmt.Errorf("read the kernel's time: %w", err)
	}
	return uint32(now), nil
}

func (w *world) mark(f family, port uint16, mark uint64, change func(*bpf.DatapathRowGroup)) error {
	keys, rows := make([]uint32, forwarding.Rows), make([]bpf.DatapathRow, forwarding.Rows)
	for i := range keys {
		keys[i] = uint32(f.table(port))*forwarding.Rows + uint32(i)
		if err := w.marks.rows.Lookup(keys[i], &rows[i]); err != nil {
			return fmt.Errorf("read a row: %w", err)
		}
		rows[i].Path |= mark
		var ofGroup bpf.DatapathRowGroup
		group := keys[i] / uint32(bpf.DatapathShapeROW_GROUP)
		err := w.marks.rowGroups.Lookup(group, &ofGroup)
		if err == nil {
			change(&ofGroup)
			err = w.marks.rowGroups.Put(group, ofGroup)
		}
		if err != nil {
			return fmt.Errorf("mark a group of rows: %w", err)
		}
	}
	if _, err := w.marks.rows.BatchUpdate(keys, rows, nil); err != nil {
		return fmt.Errorf("mark rows: %w", err)
	}
	return nil
}

func (w *world) move(f family) error {
	now, err := w.ticks()
	if err != nil {
		return err
	}
	return w.mark(f, portMoved, rowMoved, func(m *bpf.DatapathRowGroup) { m.Moved = now })
}

func (w *world) except(f family, port uint16, count int) error {
	now, err := w.ticks()
	if err != nil {
		return err
	}
	about := rig.OverrideAbout(uint32(f.table(port))*forwarding.Rows, uint32(f.owner), uint64(now))
	flows := func(yield func(netip.AddrPort, uint64) bool) {
		for i := range count {
			if !yield(f.flow(i), about) {
				return
			}
		}
	}
	if err := w.marks.overrides.Put(netip.AddrPortFrom(f.vip, port), tcp, flows); err != nil {
		return err
	}
	return w.mark(f, port, rowOverridden, func(m *bpf.DatapathRowGroup) { m.Overridden = now })
}

func (f family) flow(number int) netip.AddrPort {
	address := f.client.As16()
	binary.BigEndian.PutUint16(address[14:], uint16(number))
	return netip.AddrPortFrom(netip.AddrFrom16(address).Unmap(), uint16(firstPort+number>>16))
}

func (w *world) makeMarks(cases []*benchCase) error {
	made := map[uint16]bool{}
	for _, c := range cases {
		port := c.port
		if made[port] || port != portFew && port != portMany {
			continue
		}
		made[port] = true
		count := fewOverrides
		if port == portMany {
			count = manyOverrides
		}
		for _, f := range families {
			if err := w.except(f, port, count); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	return nil
}
