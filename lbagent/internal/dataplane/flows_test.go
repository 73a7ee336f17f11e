// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"testing"

	"github.com/cilium/ebpf"
)

// flowMaps are the tables of flows.
func flowMaps(d *Dataplane) []*ebpf.Map {
	return []*ebpf.Map{
		d.maps.Connections4, d.maps.Connections6, d.maps.Reverse4, d.maps.Reverse6,
		d.maps.Datagrams4, d.maps.Datagrams6, d.maps.DatagramsRev4, d.maps.DatagramsRev6,
		d.maps.HalfOpen4, d.maps.HalfOpen6, d.maps.HalfOpenRev4, d.maps.HalfOpenRev6,
		d.maps.Affinities4, d.maps.Affinities6,
	}
}

// forgetFlows empties the tables of flows.
func forgetFlows(t testing.TB, d *Dataplane) {
	t.Helper()
	forgetAll(t, flowMaps(d)...)
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
			if err := m.Delete(key); err != nil {
				t.Fatal(err)
			}
		}
	}
}
