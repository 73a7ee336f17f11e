// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// If the filter cannot be written, the maps hold no entry that needs it: bits are set before, and cleared
// after, VIPs and pools.
func TestFilterIsWrittenBeforeItsUsers(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	vip := netip.MustParseAddr("203.0.113.10")
	pool := forwarding.SourceRange{
		Set: forwarding.Pools, Prefix: netip.MustParsePrefix("2001:db8:cafe::/112"),
	}
	held := func() int {
		state, err := d.Dump()
		if err != nil {
			t.Fatal(err)
		}
		return len(state.VIPs) + len(state.SourceRanges)
	}
	filters := map[string]**ebpf.Map{"networks": &d.maps.VipFilter, "parts": &d.maps.VipParts}
	for name, filter := range filters {
		writable, readOnly := *filter, readOnlyLike(t, *filter)
		t.Cleanup(func() { *filter = writable })
		for kind, ops := range map[string]struct{ put, remove forwarding.Op }{
			"VIP":  {forwarding.PutVIP{Address: vip}, forwarding.DeleteVIP{Address: vip}},
			"pool": {forwarding.PutSourceRange{Range: pool}, forwarding.DeleteSourceRange{Range: pool}},
		} {
			for _, op := range []forwarding.Op{ops.put, ops.remove} {
				*filter = readOnly
				if err := d.Apply(op); err == nil {
					t.Errorf("%s, %s: %T was applied although the filter cannot be written", name, kind, op)
				}
				if n := held(); n != 0 {
					t.Errorf("%s, %s: after %T the maps contain %d entries that are missing in the filter", name, kind, op, n)
				}
				*filter = writable
				apply(t, d, ops.put)
			}
			apply(t, d, ops.remove)
			if words := filterWords(t, d); len(words) != 0 {
				t.Errorf("%s, %s: words %v remain in the filter", name, kind, words)
			}
		}
	}
}

// The next process rebuilds the filter from the VIPs and ranges in the maps.
func TestFilterIsRestored(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	apply(t, d,
		forwarding.PutVIP{Address: netip.MustParseAddr("203.0.113.10")},
		forwarding.PutSourceRange{Range: forwarding.SourceRange{
			Set: forwarding.Pools, Prefix: netip.MustParsePrefix("2001:db8:cafe::/112"),
		}})
	want := filterWords(t, d)
	if len(want) != 4 {
		t.Fatalf("words %v, want two of networks and two of parts", want)
	}
	for place, word := range want {
		if err := filterMap(d, place.parts).Put(place.index, ^word); err != nil {
			t.Fatal(err)
		}
	}
	if got := filterWords(t, openDataplane(t, cfg)); !maps.Equal(got, want) {
		t.Errorf("words = %v, want %v", got, want)
	}
}

type filterPlace struct {
	parts bool
	index uint32
}

func filterMap(d *Dataplane, parts bool) *ebpf.Map {
	if parts {
		return d.maps.VipParts
	}
	return d.maps.VipFilter
}

func filterWords(t *testing.T, d *Dataplane) map[filterPlace]uint64 {
	t.Helper()
	words := map[filterPlace]uint64{}
	for _, parts := range []bool{false, true} {
		err := readMap(filterMap(d, parts), func(index uint32, word uint64) {
			if word != 0 {
				words[filterPlace{parts, index}] = word
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return words
}
