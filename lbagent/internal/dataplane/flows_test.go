// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
)

func flowMaps(d *Dataplane) []*ebpf.Map {
	return []*ebpf.Map{
		d.maps.Connections4, d.maps.Connections6, d.maps.Reverse4, d.maps.Reverse6,
		d.maps.Datagrams4, d.maps.Datagrams6, d.maps.DatagramsRev4, d.maps.DatagramsRev6,
		d.maps.OverflowConn, d.maps.OverflowConnRev, d.maps.OverflowData, d.maps.OverflowDataRev,
	}
}

// forgetFlows empties the tables of flows, but not the records of evicted ones.
func forgetFlows(t testing.TB, d *Dataplane) {
	t.Helper()
	forgetAll(t, flowMaps(d)...)
	forgetPlaces(t, d.maps.Affinities, make([]bpf.DatapathAffinityBucket, d.maps.Affinities.MaxEntries()))
	forgetPlaces(t, d.maps.HalfOpenFlows, make([]bpf.DatapathHalfOpenBucket, d.maps.HalfOpenFlows.MaxEntries()))
}

func forgetPlaces[V any](t testing.TB, m *ebpf.Map, none []V) {
	t.Helper()
	keys := make([]uint32, len(none))
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := m.BatchUpdate(keys, none, nil); err != nil {
		t.Fatal(err)
	}
}

func forgetOverrides(t testing.TB, d *Dataplane) {
	t.Helper()
	for place := range d.maps.Overrides.MaxEntries() {
		if err := d.maps.Overrides.Put(place, bpf.DatapathOverrideBucket{}); err != nil {
			t.Fatal(err)
		}
	}
}

func forgetAll(t testing.TB, maps ...*ebpf.Map) {
	t.Helper()
	for _, m := range maps {
		var keys [][]byte
		var key any
		for {
			next, err := m.NextKeyBytes(key)
			if err != nil {
				t.Fatal(err)
			}
			if next == nil {
				break
			}
			keys = append(keys, next)
			key = next
		}
		for _, key := range keys {
			// The programs move flows meanwhile.
			if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				t.Fatal(err)
			}
		}
	}
}

func forgetFlowDigests(t testing.TB, d *Dataplane) {
	t.Helper()
	forgetPlaces(t, d.maps.FlowDigests, make([]bpf.DatapathFlowDigestBucket, d.maps.FlowDigests.MaxEntries()))
}
