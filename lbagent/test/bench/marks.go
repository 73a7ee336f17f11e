// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

// marks are the maps that say which rows have moved and which flows are exceptions. The bench
// writes them itself: learned from packets, a million exceptions would take minutes.
type marks struct {
	rows, rowMarks, heartbeat *ebpf.Map
	exceptions                map[string]*ebpf.Map
}

const rowMarked = 1 << 63

func (w *world) openMarks() error {
	w.marks.exceptions = map[string]*ebpf.Map{}
	var errs []error
	open := func(name string) *ebpf.Map {
		m, err := w.Map(name)
		errs = append(errs, err)
		return m
	}
	w.marks.rows, w.marks.rowMarks = open(bpf.DatapathMapRows), open(bpf.DatapathMapRowMarks)
	w.marks.heartbeat = open(bpf.DatapathMapHeartbeat)
	for _, name := range []string{bpf.DatapathMapExceptions4, bpf.DatapathMapExceptions6} {
		w.marks.exceptions[name] = open(name)
	}
	return errors.Join(errs...)
}

// ticks is the kernel's time in the unit of the maps: the agent has just vouched.
func (w *world) ticks() (uint32, error) {
	if err := w.Plane.Vouch(); err != nil {
		return 0, err
	}
	var now uint64
	if err := w.marks.heartbeat.Lookup(uint32(0), &now); err != nil {
		return 0, fmt.Errorf("read the kernel's time: %w", err)
	}
	return uint32(now), nil
}

// mark marks all rows of a port as the change says.
func (w *world) mark(f family, port uint16, change func(*bpf.DatapathRowMark)) error {
	keys := make([]uint32, forwarding.Rows)
	rows, marks := make([]bpf.DatapathRow, len(keys)), make([]bpf.DatapathRowMark, len(keys))
	for i := range keys {
		keys[i] = uint32(f.table(port))*forwarding.Rows + uint32(i)
		if err := errors.Join(w.marks.rows.Lookup(keys[i], &rows[i]), w.marks.rowMarks.Lookup(keys[i], &marks[i])); err != nil {
			return fmt.Errorf("read a row: %w", err)
		}
		rows[i].Path |= rowMarked
		change(&marks[i])
	}
	if _, err := w.marks.rowMarks.BatchUpdate(keys, marks, nil); err != nil {
		return fmt.Errorf("mark rows: %w", err)
	}
	if _, err := w.marks.rows.BatchUpdate(keys, rows, nil); err != nil {
		return fmt.Errorf("mark rows: %w", err)
	}
	return nil
}

// move makes all rows of portMoved ones that have just moved.
func (w *world) move(f family) error {
	now, err := w.ticks()
	if err != nil {
		return err
	}
	return w.mark(f, portMoved, func(m *bpf.DatapathRowMark) { m.Moved = now })
}

// except makes the first flows of a port exceptions.
func (w *world) except(f family, port uint16, count int) error {
	now, err := w.ticks()
	if err != nil {
		return err
	}
	values := make([]bpf.DatapathException, count)
	for i := range values {
		values[i] = bpf.DatapathException{Node: uint32(f.holder), Seen: now}
	}
	name, keys := bpf.DatapathMapExceptions6, any(nil)
	vip, vipPort := rig.Words(f.vip), rig.NetworkPort(port)
	if f.client.Is4() {
		name = bpf.DatapathMapExceptions4
		all := make([]bpf.DatapathConnectionKey4, count)
		for i := range all {
			client, clientPort := f.flow(i)
			all[i] = bpf.DatapathConnectionKey4{Client: client[3], Vip: vip[3], ClientPort: clientPort, VipPort: vipPort, Protocol: tcp}
		}
		keys = all
	} else {
		all := make([]bpf.DatapathConnectionKey6, count)
		for i := range all {
			client, clientPort := f.flow(i)
			all[i] = bpf.DatapathConnectionKey6{
				Client: bpf.DatapathAddress{Word: client}, Vip: bpf.DatapathAddress{Word: vip},
				ClientPort: clientPort, VipPort: vipPort, Protocol: tcp,
			}
		}
		keys = all
	}
	if _, err := w.marks.exceptions[name].BatchUpdate(keys, values, nil); err != nil {
		return fmt.Errorf("write %d exceptions: %w", count, err)
	}
	return w.mark(f, port, func(m *bpf.DatapathRowMark) { m.Excepted = now })
}

// flow is the client's address and port of a flow, as loaded from a packet (src/replay.c).
func (f family) flow(number int) (client [4]uint32, port uint16) {
	address := f.client.As16()
	binary.BigEndian.PutUint16(address[14:], uint16(number))
	for i := range client {
		client[i] = binary.NativeEndian.Uint32(address[4*i:])
	}
	return client, rig.NetworkPort(uint16(firstPort + number>>16))
}

// makeMarks makes the marks that cases need.
func (w *world) makeMarks(cases []*benchCase) error {
	made := map[uint16]bool{}
	for _, c := range cases {
		port := c.port
		if made[port] || port != portFew && port != portMany {
			continue
		}
		made[port] = true
		count := fewExceptions
		if port == portMany {
			count = manyExceptions
		}
		for _, f := range families {
			if err := w.except(f, port, count); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	return nil
}
