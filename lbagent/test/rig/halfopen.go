// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
)

// Bit fields of the marks in the table of half-open flows (bpf/src/half_open.h).
const (
	halfOpenTables  = 4
	halfOpenTag     = 1<<16 - 1
	halfOpenAnswers = 16
	halfOpenTags    = 1<<32 - 1
)

// HalfOpen is the table of half-open flows of a data plane, with its hash secret. BPF programs must not
// write it while it is read.
type HalfOpen struct{ Table, Key *ebpf.Map }

// HalfOpen opens the table of half-open flows.
func (r *Rig) HalfOpen() (*HalfOpen, error) {
	table, err := r.Map(bpf.DatapathMapHalfOpenFlows)
	if err != nil {
		return nil, err
	}
	key, err := r.Map(bpf.DatapathMapFingerprintKey)
	return &HalfOpen{Table: table, Key: key}, err
}

// Find returns the entry of a flow, from the client's bucket or the overflow bucket of crowded VIPs, or nil.
func (h *HalfOpen) Find(client, vip netip.AddrPort, protocol uint8) (*bpf.DatapathHalfOpen, error) {
	var secret bpf.DatapathFingerprintSecret
	if err := h.Key.Lookup(uint32(0), &secret); err != nil {
		return nil, fmt.Errorf("read the secret of the prints: %w", err)
	}
	none := netip.IPv6Unspecified()
	buckets := h.Table.MaxEntries() / halfOpenTables
	first := buckets
	if client.Addr().Is4() {
		none, first = netip.IPv4Unspecified(), 0
	}
	place := first + uint32(overridePrint(&secret, client, netip.AddrPortFrom(none, 0), protocol))&(buckets-1)
	print := overridePrint(&secret, client, vip, protocol)
	for second := range uint32(2) {
		var bucket bpf.DatapathHalfOpenBucket
		if err := h.Table.Lookup(2*place+second, &bucket); err != nil {
			return nil, fmt.Errorf("read a bucket of half-open flows: %w", err)
		}
		for i := range bucket.Slot {
			if bucket.Mark[i]&halfOpenTag != 0 && bucket.Slot[i].ForwardFingerprint == print {
				return &bucket.Slot[i], nil
			}
		}
	}
	return nil, nil
}

// Change rewrites all occupied entries and their marks.
func (h *HalfOpen) Change(with func(*bpf.DatapathHalfOpen), mark func(uint64) uint64) error {
	keys := make([]uint32, h.Table.MaxEntries())
	buckets := make([]bpf.DatapathHalfOpenBucket, len(keys))
	var cursor ebpf.MapBatchCursor
	if _, err := h.Table.BatchLookup(&cursor, keys, buckets, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read the half-open flows: %w", err)
	}
	taken := false
	for b := range buckets {
		for i := range buckets[b].Slot {
			if buckets[b].Mark[i]&halfOpenTags != 0 {
				taken = true
				with(&buckets[b].Slot[i])
				buckets[b].Mark[i] = mark(buckets[b].Mark[i])
			}
		}
	}
	if !taken {
		return nil
	}
	if _, err := h.Table.BatchUpdate(keys, buckets, nil); err != nil {
		return fmt.Errorf("write the half-open flows: %w", err)
	}
	return nil
}

// Count returns the number of occupied slots.
func (h *HalfOpen) Count() (taken int, err error) {
	err = h.Change(func(*bpf.DatapathHalfOpen) { taken++ }, func(mark uint64) uint64 { return mark })
	return taken, err
}

// EvictAnswers removes the reply direction of all flows.
func (h *HalfOpen) EvictAnswers() error {
	return h.Change(func(*bpf.DatapathHalfOpen) {}, func(mark uint64) uint64 { return mark &^ (halfOpenTag << halfOpenAnswers) })
}

// Age makes all flows older by ticks.
func (h *HalfOpen) Age(ticks uint32) error {
	return h.Change(func(e *bpf.DatapathHalfOpen) { e.Connection.Seen -= ticks }, func(mark uint64) uint64 { return mark })
}

// Clear removes all flows.
func (h *HalfOpen) Clear() error {
	return h.Change(func(*bpf.DatapathHalfOpen) {}, func(uint64) uint64 { return 0 })
}
