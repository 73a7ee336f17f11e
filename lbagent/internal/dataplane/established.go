// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
)

// establishedWords are those of a copy of the filter of established connections: a power of two,
// and eight to sixteen bits for each connection of a family.
func (c *Config) establishedWords() uint32 {
	return 1 << bits.Len32(uint32(max(c.Connections/8, 1)-1))
}

// staleParts is by which part of the filter's bits a whole copy may grow before it is made again.
const staleParts = 16

// SweepConnections makes the filter of established connections, which spares SYNs the look for
// entries that are not there (bpf/src/established_filter.h). It does nothing before all programs
// are attached, and while few connections came since the last time. Programs use the filter once
// it was made, and do without it until then.
func (d *Dataplane) SweepConnections() error {
	d.mu.Lock()
	attached := d.attached
	d.mu.Unlock()
	if !attached {
		return nil
	}
	d.noting.Lock()
	defer d.noting.Unlock()
	stale, err := d.filterIsStale()
	if err == nil && stale {
		err = d.makeFilter()
	}
	if err != nil {
		return fmt.Errorf("make the filter of established connections: %w", err)
	}
	return nil
}

// filterIsStale reports whether no copy is whole, or the whole one has grown.
func (d *Dataplane) filterIsStale() (bool, error) {
	filter, err := d.establishedFilter()
	if err != nil || filter.whole == bpf.DatapathWholeCopyNO_COPY {
		return true, err
	}
	noted, err := filter.count(filter.whole)
	return int64(noted-d.noted) >= filter.size*8/staleParts, err
}

// makeFilter notes all connections in the copy that is not whole, and then has programs read it.
func (d *Dataplane) makeFilter() error {
	filter, err := d.establishedFilter()
	if err != nil {
		return err
	}
	next := bpf.DatapathWholeCopyFIRST_COPY
	if filter.whole == next {
		next = bpf.DatapathWholeCopySECOND_COPY
	}
	if err := filter.clear(next); err != nil {
		return err
	}
	if err := d.noteConnections(); err != nil {
		return err
	}
	if err := filter.declareWhole(next); err != nil {
		return err
	}
	d.noted, err = filter.count(next)
	return err
}

// noteConnections notes all clients of the tables. An entry without one in the other direction
// counts as well.
func (d *Dataplane) noteConnections() error {
	found := foundClients{dataplane: d}
	err := readMap(d.maps.Connections4, func(key bpf.DatapathConnectionKey4, _ bpf.DatapathConnection) {
		found.add4(key.Client, key.ClientPort)
	})
	err = errors.Join(err, readMap(d.maps.Reverse4, func(key bpf.DatapathReverseKey4, _ bpf.DatapathReverse) {
		found.add4(key.Client, key.ClientPort)
	}))
	for _, m := range []*ebpf.Map{d.maps.Connections6, d.maps.OverflowConn} {
		err = errors.Join(err, readMap(m, func(key bpf.DatapathConnectionKey6, _ bpf.DatapathConnection) {
			found.add6(key.Client, key.ClientPort)
		}))
	}
	for _, m := range []*ebpf.Map{d.maps.Reverse6, d.maps.OverflowConnRev} {
		err = errors.Join(err, readMap(m, func(key bpf.DatapathReverseKey6, _ bpf.DatapathReverse) {
			found.add6(key.Client, key.ClientPort)
		}))
	}
	found.note()
	return errors.Join(err, found.err)
}

// foundClients are those that a program has still to note.
type foundClients struct {
	dataplane *Dataplane
	// flows are as the map noted_flows has them.
	flows []byte
	count uint32
	// err is why some were not noted.
	err error
}

func (c *foundClients) add4(client uint32, port uint16) {
	c.add([4]uint32{3: client}, port, unix.AF_INET)
}

// add6 also adds clients of IPv4, which the second tables have as IPv4-mapped addresses.
func (c *foundClients) add6(client bpf.DatapathAddress, port uint16) {
	if decodeAddress(client).Is4() {
		c.add(client.Word, port, unix.AF_INET)
		return
	}
	c.add(client.Word, port, unix.AF_INET6)
}

// add adds a flow of TCP to no VIP, laid out as struct flow. After a failure it adds none.
func (c *foundClients) add(client [4]uint32, port uint16, family uint8) {
	if c.err != nil {
		return
	}
	for _, word := range client {
		c.flows = binary.NativeEndian.AppendUint32(c.flows, word)
	}
	c.flows = append(c.flows, make([]byte, len(bpf.DatapathAddress{}.Word)*4)...)
	c.flows = binary.NativeEndian.AppendUint16(c.flows, port)
	c.flows = append(c.flows, 0, 0, unix.IPPROTO_TCP, family, 0, 0)
	if c.count++; c.count == uint32(bpf.DatapathShapeNOTED_AT_ONCE) {
		c.note()
	}
}

// note has a program of ours note them.
func (c *foundClients) note() {
	if c.count == 0 || c.err != nil {
		return
	}
	memory, err := c.dataplane.maps.NotedFlows.Memory()
	if err == nil {
		_, err = memory.WriteAt(c.flows, 0)
	}
	if err != nil {
		c.err = fmt.Errorf("write map %s: %w", bpf.DatapathMapNotedFlows, err)
		return
	}
	noted, err := c.dataplane.programs.NoteConnections.Run(&ebpf.RunOptions{Context: c.count})
	if err == nil && noted != c.count {
		err = errors.New("the kernel stopped before all were noted")
	}
	if err != nil {
		c.err = fmt.Errorf("note %d clients: %w", c.count, err)
	}
	c.flows, c.count = c.flows[:0], 0
}

// establishedFilter is the map's memory: two copies of the filter, and which of them is whole.
type establishedFilter struct {
	memory *ebpf.Memory
	// size is that of a copy in bytes.
	size  int64
	whole bpf.DatapathWholeCopy
}

func (d *Dataplane) establishedFilter() (*establishedFilter, error) {
	memory, err := d.maps.EstablishedFilter.Memory()
	if err != nil {
		return nil, err
	}
	filter := &establishedFilter{memory: memory, size: int64(d.config.establishedWords()) * 8}
	var whole [8]byte
	if _, err := memory.ReadAt(whole[:], 2*filter.size); err != nil {
		return nil, err
	}
	filter.whole = bpf.DatapathWholeCopy(binary.NativeEndian.Uint64(whole[:]))
	return filter, nil
}

func (f *establishedFilter) declareWhole(which bpf.DatapathWholeCopy) error {
	f.whole = which
	_, err := f.memory.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(which)), 2*f.size)
	return err
}

func (f *establishedFilter) clear(which bpf.DatapathWholeCopy) error {
	_, err := f.memory.WriteAt(make([]byte, f.size), f.at(which))
	return err
}

func (f *establishedFilter) read(which bpf.DatapathWholeCopy) (words []byte, err error) {
	words = make([]byte, f.size)
	_, err = f.memory.ReadAt(words, f.at(which))
	return words, err
}

// count is how many bits of the copy are set.
func (f *establishedFilter) count(which bpf.DatapathWholeCopy) (set int, err error) {
	words, err := f.read(which)
	for ; len(words) > 0; words = words[8:] {
		set += bits.OnesCount64(binary.NativeEndian.Uint64(words))
	}
	return set, err
}

func (f *establishedFilter) at(which bpf.DatapathWholeCopy) int64 {
	if which == bpf.DatapathWholeCopySECOND_COPY {
		return f.size
	}
	return 0
}
