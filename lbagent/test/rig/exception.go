// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
)

// exceptionPrint returns the fingerprint of a flow in the exception table (bpf/src/exception_table.h).
func exceptionPrint(secret *bpf.DatapathExceptionSecret, client, vip netip.AddrPort, protocol uint8) uint64 {
	key := secret.Word[:]
	c, v := Words(client.Addr()), Words(vip.Addr())
	ports := uint64(NetworkPort(vip.Port()))<<16 | uint64(NetworkPort(client.Port()))
	if !client.Addr().Is4() {
		return print6(secret, c, v, ports, protocol)
	}
	return printOf((uint64(c[3])+key[0])*(uint64(v[3])+key[1]) + (ports+key[2])*(uint64(protocol)+key[3]))
}

// print6 is exception_print6 of the BPF programs.
func print6(secret *bpf.DatapathExceptionSecret, c, v [4]uint32, ports uint64, protocol uint8) uint64 {
	word := func(value uint32, at int) uint64 { return uint64(value) + secret.Word[at] }
	return printOf(word(c[0], 4)*word(c[1], 5) + word(c[2], 6)*word(c[3], 7) + word(v[0], 8)*word(v[1], 9) + word(v[2], 10)*word(v[3], 11) +
		(ports+secret.Word[2])*(uint64(protocol)+secret.Word[3]))
}

func printOf(sum uint64) uint64 {
	for _, factor := range []uint64{0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53, 1} {
		sum = (sum ^ sum>>33) * factor
	}
	if sum <= 2 {
		sum += 3
	}
	return sum
}

// Bit fields of a slot's About.
const (
	exceptionNode = 24
	exceptionRow  = 36
	// exceptionTicks is the unit of time in ticks, as a power of two.
	exceptionTicks = 8
	exceptionSeen  = 1<<21 - 1
	// The lower bits of a node ID are at exceptionNode, the upper two at exceptionNodeHigh.
	exceptionNodeHigh = 21
	nodeLowBits       = 12
	nodeLow           = 1<<nodeLowBits - 1
	nodeHigh          = 3
)

// ExceptionNode returns the node ID in an exception.
func ExceptionNode(about uint64) uint32 {
	return uint32(about>>exceptionNode&nodeLow | about>>exceptionNodeHigh&nodeHigh<<nodeLowBits)
}

// ExceptionAbout encodes an exception: the node holds a TCP flow of the row, last used at tick.
func ExceptionAbout(row, node uint32, tick uint64) uint64 {
	return uint64(row)<<exceptionRow | uint64(node&nodeLow)<<exceptionNode | uint64(node>>nodeLowBits)<<exceptionNodeHigh |
		tick>>exceptionTicks&exceptionSeen
}

// Exceptions is the exception table of a data plane, with its filter and hash secret.
type Exceptions struct{ Table, Filter, Key *ebpf.Map }

// Exceptions opens the exception table.
func (r *Rig) Exceptions() (*Exceptions, error) {
	table, err := r.Map(bpf.DatapathMapExceptions)
	if err != nil {
		return nil, err
	}
	filter, err := r.Map(bpf.DatapathMapExceptionFilter)
	if err != nil {
		return nil, err
	}
	key, err := r.Map(bpf.DatapathMapExceptionKey)
	return &Exceptions{Table: table, Filter: filter, Key: key}, err
}

// Find returns the exception of a flow, or zero.
func (e *Exceptions) Find(client, vip netip.AddrPort, protocol uint8) (about uint64, err error) {
	print, err := e.print(client, vip, protocol)
	if err != nil {
		return 0, err
	}
	for _, place := range e.places(print) {
		var bucket bpf.DatapathExceptionBucket
		if err := e.Table.Lookup(place, &bucket); err != nil {
			return 0, fmt.Errorf("read a bucket of exceptions: %w", err)
		}
		for _, exception := range bucket.Slot {
			if exception.Print == print {
				return exception.About, e.checkFilter(print)
			}
		}
		if bucket.Slot[len(bucket.Slot)-1].Print == 0 {
			break
		}
	}
	return 0, nil
}

func (e *Exceptions) checkFilter(print uint64) error {
	var word uint64
	if err := e.Filter.Lookup(e.places(print)[0]/uint32(bpf.DatapathShapeEXCEPTION_FILTERED), &word); err != nil {
		return fmt.Errorf("read the filter of the exceptions: %w", err)
	}
	if bits := filterBits(print); word&bits != bits {
		return fmt.Errorf("the filter hides an exception: its word is %x, without %x", word, bits&^word)
	}
	return nil
}

func filterBits(print uint64) uint64 { return 1<<(print>>58) | 1<<(print>>52&63) }

// Put writes exceptions by client. BPF programs must not write the table meanwhile.
func (e *Exceptions) Put(vip netip.AddrPort, protocol uint8, clients iter.Seq2[netip.AddrPort, uint64]) error {
	var secret bpf.DatapathExceptionSecret
	if err := e.Key.Lookup(uint32(0), &secret); err != nil {
		return fmt.Errorf("read the secret of the exceptions: %w", err)
	}
	keys := make([]uint32, e.Table.MaxEntries())
	buckets := make([]bpf.DatapathExceptionBucket, len(keys))
	var cursor ebpf.MapBatchCursor
	if _, err := e.Table.BatchLookup(&cursor, keys, buckets, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read the exceptions: %w", err)
	}
	filter := make([]uint64, e.Filter.MaxEntries())
	cursor = ebpf.MapBatchCursor{}
	if _, err := e.Filter.BatchLookup(&cursor, make([]uint32, len(filter)), filter, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read the filter of the exceptions: %w", err)
	}
	isFree := func(e bpf.DatapathException) bool { return e.Print == 0 }
	for client, about := range clients {
		print := exceptionPrint(&secret, client, vip, protocol)
		places := e.places(print)
		bucket := &buckets[places[0]]
		if !slices.ContainsFunc(bucket.Slot[:], isFree) {
			bucket = &buckets[places[1]]
		}
		slot := slices.IndexFunc(bucket.Slot[:], isFree)
		if slot < 0 {
			return fmt.Errorf("no room for the exception of %s", client)
		}
		bucket.Slot[slot] = bpf.DatapathException{Print: print, About: about}
		filter[places[0]/uint32(bpf.DatapathShapeEXCEPTION_FILTERED)] |= filterBits(print)
	}
	if _, err := e.Filter.BatchUpdate(keys[:len(filter)], filter, nil); err != nil {
		return fmt.Errorf("write the filter of the exceptions: %w", err)
	}
	if _, err := e.Table.BatchUpdate(keys, buckets, nil); err != nil {
		return fmt.Errorf("write exceptions: %w", err)
	}
	return nil
}

// Clear removes all exceptions.
func (e *Exceptions) Clear() error {
	keys := make([]uint32, e.Table.MaxEntries())
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := e.Table.BatchUpdate(keys, make([]bpf.DatapathExceptionBucket, len(keys)), nil); err != nil {
		return fmt.Errorf("clear the exceptions: %w", err)
	}
	return nil
}

func (e *Exceptions) print(client, vip netip.AddrPort, protocol uint8) (uint64, error) {
	var secret bpf.DatapathExceptionSecret
	if err := e.Key.Lookup(uint32(0), &secret); err != nil {
		return 0, fmt.Errorf("read the secret of the exceptions: %w", err)
	}
	return exceptionPrint(&secret, client, vip, protocol), nil
}

// places returns the two buckets of a fingerprint.
func (e *Exceptions) places(print uint64) [2]uint32 {
	mask := uint64(e.Table.MaxEntries() - 1)
	return [2]uint32{uint32(print & mask), uint32(print >> 32 & mask)}
}
