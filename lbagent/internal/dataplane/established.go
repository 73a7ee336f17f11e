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

// establishedWords is the number of words of a copy of the filter of established connections: a power of two,
// with eight to sixteen bits per connection of a family.
func (c *Config) establishedWords() uint32 {
	return 1 << bits.Len32(uint32(max(c.Connections/8, 1)-1))
}

// staleParts limits the growth of a copy to this fraction of the filter's bits before it is rebuilt.
const staleParts = 16

// SweepConnections rebuilds the filter of established connections, which spares SYNs the lookup of missing
// entries (bpf/src/established_filter.h). It does nothing until all programs are attached, and while few
// connections were added since the last call. Programs ignore the filter until it is first built.
func (d *Dataplane) SweepConnections() error {
	d.mu.Lock()
	attached := d.attached
	d.mu.Unlock()
	if !attached {
		return nil
	}
	d.sweepMu.Lock()
	defer d.sweepMu.Unlock()
	stale, err := d.filterIsStale()
	if err == nil && stale {
		err = d.makeFilter()
	}
	if err != nil {
		return fmt.Errorf("create the filter of established connections: %w", err)
	}
	return nil
}

func (d *Dataplane) filterIsStale() (bool, error) {
	filter, err := d.establishedFilter()
	if err != nil || filter.whole == bpf.DatapathCompleteCopyNO_COPY {
		return true, err
	}
	noted, err := filter.count(filter.whole)
	return int64(noted-d.recordedBits) >= filter.size*8/staleParts, err
}

// makeFilter adds all connections to the incomplete copy, and then switches the programs to it.
func (d *Dataplane) makeFilter() error {
	filter, err := d.establishedFilter()
	if err != nil {
		return err
	}
	next := bpf.DatapathCompleteCopyFIRST_COPY
	if filter.whole == next {
		next = bpf.DatapathCompleteCopySECOND_COPY
	}
	if err := filter.clear(next); err != nil {
		return err
	}
	if err := d.recordConnections(); err != nil {
		return err
	}
	if err := filter.declareWhole(next); err != nil {
		return err
	}
	d.recordedBits, err = filter.count(next)
	return err
}

// recordConnections adds the clients of all tables, also of entries in one direction only.
func (d *Dataplane) recordConnections() error {
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
	found.record()
	return errors.Join(err, found.err)
}

type foundClients struct {
	dataplane *Dataplane
	flows     []byte
	count     uint32
	err       error
}

func (c *foundClients) add4(client uint32, port uint16) {
	c.add([4]uint32{3: client}, port, unix.AF_INET)
}

// add6 also accepts IPv4 clients, which the overflow tables store as IPv4-mapped addresses.
func (c *foundClients) add6(client bpf.DatapathAddress, port uint16) {
	if decodeAddress(client).Is4() {
		c.add(client.Word, port, unix.AF_INET)
		return
	}
	c.add(client.Word, port, unix.AF_INET6)
}

// add adds a TCP flow without VIP, encoded as struct flow. It does nothing after a failure.
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
	if c.count++; c.count == uint32(bpf.DatapathShapeFILTER_BATCH) {
		c.record()
	}
}

func (c *foundClients) record() {
	if c.count == 0 || c.err != nil {
		return
	}
	memory, err := c.dataplane.maps.FilterUpdates.Memory()
	if err == nil {
		_, err = memory.WriteAt(c.flows, 0)
	}
	if err != nil {
		c.err = fmt.Errorf("write map %s: %w", bpf.DatapathMapFilterUpdates, err)
		return
	}
	noted, err := c.dataplane.programs.AddEstablished.Run(&ebpf.RunOptions{Context: c.count})
	if err == nil && noted != c.count {
		err = errors.New("the kernel stopped before all were recorded")
	}
	if err != nil {
		c.err = fmt.Errorf("record %d clients: %w", c.count, err)
	}
	c.flows, c.count = c.flows[:0], 0
}

// establishedFilter is the map's memory: two copies of the filter, and which copy is complete.
type establishedFilter struct {
	memory *ebpf.Memory
	size   int64
	whole  bpf.DatapathCompleteCopy
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
	filter.whole = bpf.DatapathCompleteCopy(binary.NativeEndian.Uint64(whole[:]))
	return filter, nil
}

func (f *establishedFilter) declareWhole(which bpf.DatapathCompleteCopy) error {
	f.whole = which
	_, err := f.memory.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(which)), 2*f.size)
	return err
}

func (f *establishedFilter) clear(which bpf.DatapathCompleteCopy) error {
	_, err := f.memory.WriteAt(make([]byte, f.size), f.at(which))
	return err
}

func (f *establishedFilter) read(which bpf.DatapathCompleteCopy) (words []byte, err error) {
	words = make([]byte, f.size)
	_, err = f.memory.ReadAt(words, f.at(which))
	return words, err
}

func (f *establishedFilter) count(which bpf.DatapathCompleteCopy) (set int, err error) {
	words, err := f.read(which)
	for ; len(words) > 0; words = words[8:] {
		set += bits.OnesCount64(binary.NativeEndian.Uint64(words))
	}
	return set, err
}

func (f *establishedFilter) at(which bpf.DatapathCompleteCopy) int64 {
	if which == bpf.DatapathCompleteCopySECOND_COPY {
		return f.size
	}
	return 0
}
