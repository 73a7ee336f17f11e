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

// overridePrint returns the fingerprint of a flow in the override table (bpf/src/override_table.h).
func overridePrint(secret *bpf.DatapathFingerprintSecret, client, vip netip.AddrPort, protocol uint8) uint64 {
	key := secret.Word[:]
	c, v := Words(client.Addr()), Words(vip.Addr())
	ports := uint64(NetworkPort(vip.Port()))<<16 | uint64(NetworkPort(client.Port()))
	if !client.Addr().Is4() {
		return print6(secret, c, v, ports, protocol)
	}
	return printOf((uint64(c[3])+key[0])*(uint64(v[3])+key[1]) + (ports+key[2])*(uint64(protocol)+key[3]))
}

// print6 is override_print6 of the BPF programs.
func print6(secret *bpf.DatapathFingerprintSecret, c, v [4]uint32, ports uint64, protocol uint8) uint64 {
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
	overrideNode = 24
	overrideRow  = 36
	// overrideTicks is the unit of time in ticks, as a power of two.
	overrideTicks = 8
	overrideSeen  = 1<<21 - 1
	// The lower bits of a node ID are at overrideNode, the upper two at overrideNodeHigh.
	overrideNodeHigh = 21
	nodeLowBits      = 12
	nodeLow          = 1<<nodeLowBits - 1
	nodeHigh         = 3
)

// OverrideNode returns the node ID in an override.
func OverrideNode(about uint64) uint32 {
	return uint32(about>>overrideNode&nodeLow | about>>overrideNodeHigh&nodeHigh<<nodeLowBits)
}

// OverrideAbout encodes an override: the node holds a TCP flow of the row, last used at tick.
func OverrideAbout(row, node uint32, tick uint64) uint64 {
	return uint64(row)<<overrideRow | uint64(node&nodeLow)<<overrideNode | uint64(node>>nodeLowBits)<<overrideNodeHigh |
		tick>>overrideTicks&overrideSeen
}

// Overrides is the override table of a data plane, with its filter and hash secret.
type Overrides struct{ Table, Filter, Key *ebpf.Map }

// Overrides opens the override table.
func (r *Rig) Overrides() (*Overrides, error) {
	table, err := r.Map(bpf.DatapathMapOverrides)
	if err != nil {
		return nil, err
	}
	filter, err := r.Map(bpf.DatapathMapOverrideFilter)
	if err != nil {
		return nil, err
	}
	key, err := r.Map(bpf.DatapathMapFingerprintKey)
	return &Overrides{Table: table, Filter: filter, Key: key}, err
}

// Find returns the override of a flow, or zero.
func (e *Overrides) Find(client, vip netip.AddrPort, protocol uint8) (about uint64, err error) {
	print, err := e.print(client, vip, protocol)
	if err != nil {
		return 0, err
	}
	for _, place := range e.places(print) {
		var bucket bpf.DatapathOverrideBucket
		if err := e.Table.Lookup(place, &bucket); err != nil {
			return 0, fmt.Errorf("read a bucket of overrides: %w", err)
		}
		for _, override := range bucket.Slot {
			if override.Fingerprint == print {
				return override.Value, e.checkFilter(print)
			}
		}
		if bucket.Slot[len(bucket.Slot)-1].Fingerprint == 0 {
			break
		}
	}
	return 0, nil
}

func (e *Overrides) checkFilter(print uint64) error {
	var word uint64
	if err := e.Filter.Lookup(e.places(print)[0]/uint32(bpf.DatapathShapeOVERRIDE_FILTERED), &word); err != nil {
		return fmt.Errorf("read the filter of the overrides: %w", err)
	}
	if bits := filterBits(print); word&bits != bits {
		return fmt.Errorf("the filter hides an override: its word is %x, without %x", word, bits&^word)
	}
	return nil
}

func filterBits(print uint64) uint64 { return 1<<(print>>58) | 1<<(print>>52&63) }

// Put writes overrides by client. BPF programs must not write the table meanwhile.
func (e *Overrides) Put(vip netip.AddrPort, protocol uint8, clients iter.Seq2[netip.AddrPort, uint64]) error {
	var secret bpf.DatapathFingerprintSecret
	if err := e.Key.Lookup(uint32(0), &secret); err != nil {
		return fmt.Errorf("read the secret of the overrides: %w", err)
	}
	keys := make([]uint32, e.Table.MaxEntries())
	buckets := make([]bpf.DatapathOverrideBucket, len(keys))
	var cursor ebpf.MapBatchCursor
	if _, err := e.Table.BatchLookup(&cursor, keys, buckets, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read the overrides: %w", err)
	}
	filter := make([]uint64, e.Filter.MaxEntries())
	cursor = ebpf.MapBatchCursor{}
	if _, err := e.Filter.BatchLookup(&cursor, make([]uint32, len(filter)), filter, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read the filter of the overrides: %w", err)
	}
	isFree := func(e bpf.DatapathOverride) bool { return e.Fingerprint == 0 }
	for client, about := range clients {
		print := overridePrint(&secret, client, vip, protocol)
		places := e.places(print)
		bucket := &buckets[places[0]]
		if !slices.ContainsFunc(bucket.Slot[:], isFree) {
			bucket = &buckets[places[1]]
		}
		slot := slices.IndexFunc(bucket.Slot[:], isFree)
		if slot < 0 {
			return fmt.Errorf("no room for the override of %s", client)
		}
		bucket.Slot[slot] = bpf.DatapathOverride{Fingerprint: print, Value: about}
		filter[places[0]/uint32(bpf.DatapathShapeOVERRIDE_FILTERED)] |= filterBits(print)
	}
	if _, err := e.Filter.BatchUpdate(keys[:len(filter)], filter, nil); err != nil {
		return fmt.Errorf("write the filter of the overrides: %w", err)
	}
	if _, err := e.Table.BatchUpdate(keys, buckets, nil); err != nil {
		return fmt.Errorf("write overrides: %w", err)
	}
	return nil
}

// Clear removes all overrides.
func (e *Overrides) Clear() error {
	keys := make([]uint32, e.Table.MaxEntries())
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := e.Table.BatchUpdate(keys, make([]bpf.DatapathOverrideBucket, len(keys)), nil); err != nil {
		return fmt.Errorf("clear the overrides: %w", err)
	}
	return nil
}

func (e *Overrides) print(client, vip netip.AddrPort, protocol uint8) (uint64, error) {
	var secret bpf.DatapathFingerprintSecret
	if err := e.Key.Lookup(uint32(0), &secret); err != nil {
		return 0, fmt.Errorf("read the secret of the overrides: %w", err)
	}
	return overridePrint(&secret, client, vip, protocol), nil
}

// places returns the two buckets of a fingerprint.
func (e *Overrides) places(print uint64) [2]uint32 {
	mask := uint64(e.Table.MaxEntries() - 1)
	return [2]uint32{uint32(print & mask), uint32(print >> 32 & mask)}
}
