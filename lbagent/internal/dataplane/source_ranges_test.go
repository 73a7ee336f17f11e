// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// The lookup of aggregates is enabled exactly while there are some.
func TestAggregateLookupOnlyWithAggregates(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	of := func(set forwarding.SourceSet, prefix string) forwarding.SourceRange {
		return forwarding.SourceRange{Set: set, Prefix: netip.MustParsePrefix(prefix)}
	}
	pool := of(forwarding.Pools, "203.0.113.0/25")
	first, second := of(forwarding.Aggregates, "203.0.113.0/24"), of(forwarding.Aggregates, "2001:db8:cafe::/48")
	put := func(source forwarding.SourceRange) forwarding.Op { return forwarding.PutSourceRange{Range: source} }
	remove := func(source forwarding.SourceRange) forwarding.Op { return forwarding.DeleteSourceRange{Range: source} }
	for _, step := range []struct {
		op   forwarding.Op
		want bool
	}{
		{put(pool), false}, {put(first), true}, {put(second), true},
		{forwarding.SetSelf{Self: forwarding.Self{ID: 7}}, true},
		{remove(first), true}, {remove(pool), true}, {remove(second), false},
		{put(pool), false}, {put(second), true},
	} {
		apply(t, d, step.op)
		if got := asksForAggregates(t, d); got != step.want {
			t.Fatalf("after %+v: aggregate lookup enabled: %v, want %v", step.op, got, step.want)
		}
	}
	// As left by an agent without this setting.
	settings := d.self
	settings.Flags &^= uint32(bpf.DatapathSelfFlagSELF_AGGREGATES)
	if err := d.maps.Settings.Put(uint32(0), settings); err != nil {
		t.Fatal(err)
	}
	if other := openDataplane(t, cfg); !asksForAggregates(t, other) {
		t.Error("after a restart, the lookup of the existing aggregate is disabled")
	}
}

func asksForAggregates(t *testing.T, d *Dataplane) bool {
	t.Helper()
	var settings bpf.DatapathSelf
	if err := d.maps.Settings.Lookup(uint32(0), &settings); err != nil {
		t.Fatal(err)
	}
	return settings.Flags&uint32(bpf.DatapathSelfFlagSELF_AGGREGATES) != 0
}

// If the setting cannot be written, no aggregate is in the maps: it is set before the first one and cleared
// after the last.
func TestNoLookupWithoutAggregates(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	aggregate := forwarding.SourceRange{Set: forwarding.Aggregates, Prefix: netip.MustParsePrefix("203.0.113.0/24")}
	writable := d.maps.Settings
	t.Cleanup(func() { d.maps.Settings = writable })
	readOnly := readOnlyLike(t, writable)
	held := func() bool {
		state, err := d.Dump()
		if err != nil {
			t.Fatal(err)
		}
		_, found := state.SourceRanges[aggregate]
		return found
	}
	for _, step := range []struct {
		name   string
		op     forwarding.Op
		before bool
	}{
		{"the first", forwarding.PutSourceRange{Range: aggregate}, false},
		{"the last", forwarding.DeleteSourceRange{Range: aggregate}, true},
	} {
		if held() != step.before {
			t.Fatalf("before %s: aggregate in the maps: %v, want %v", step.name, !step.before, step.before)
		}
		d.maps.Settings = readOnly
		if err := d.Apply(step.op); err == nil {
			t.Errorf("%s: applied although the setting cannot be written", step.name)
		}
		if held() {
			t.Errorf("%s: the aggregate is in the maps although the setting was not written", step.name)
		}
		d.maps.Settings = writable
		apply(t, d, forwarding.PutSourceRange{Range: aggregate})
	}
	apply(t, d, forwarding.DeleteSourceRange{Range: aggregate})
	if asksForAggregates(t, d) {
		t.Error("aggregate lookup is still enabled")
	}
}

func readOnlyLike(t *testing.T, m *ebpf.Map) *ebpf.Map {
	t.Helper()
	readOnly, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: m.Type(), KeySize: m.KeySize(), ValueSize: m.ValueSize(), MaxEntries: m.MaxEntries(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { readOnly.Close() })
	if err := readOnly.Freeze(); err != nil {
		t.Fatal(err)
	}
	return readOnly
}
