// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/layout"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Of two times the later one stays, also where the clock has wrapped between them.
func TestLater(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := rapid.Uint32().Draw(t, "now")
		ages := rapid.SliceOfN(rapid.Uint32Range(0, 1<<31), 2, 2).Draw(t, "ages")
		a, b := now-ages[0], now-ages[1]
		want := now - min(ages[0], ages[1])
		switch {
		case a == 0:
			want = b
		case b == 0:
			want = a
		}
		if got := later(a, b, now); got != want {
			t.Errorf("of %d and %d at %d: %d, want %d", a, b, now, got, want)
		}
	})
}

// pinRowMarks has the maps pinned as a version did that had a mark for each row.
func pinRowMarks(t *testing.T, cfg Config, marks map[uint32]bpf.DatapathGroupMark) {
	t.Helper()
	pinAs(t, cfg, func(layouts map[string]layout.Map) {
		layouts[previousRowMarks] = layouts[bpf.DatapathMapGroupMarks]
		delete(layouts, bpf.DatapathMapGroupMarks)
	})
	directory := filepath.Join(cfg.PinRoot, mapDirectory)
	entries := uint32(cfg.Limits.NodeTables+1) * forwarding.Rows
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: previousRowMarks, Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: entries})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for row, mark := range marks {
		if err := m.Put(row, mark); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Pin(filepath.Join(directory, previousRowMarks)); err != nil {
		t.Fatal(err)
	}
	rows, err := ebpf.LoadPinnedMap(filepath.Join(directory, bpf.DatapathMapRows), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	previous, err := ebpf.NewMap(&ebpf.MapSpec{Name: bpf.DatapathMapRows, Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: entries})
	if err != nil {
		t.Fatal(err)
	}
	if err := copyMap(rows, previous, nil, ebpf.UpdateAny); err != nil {
		t.Fatal(err)
	}
	pinOver(t, previous, filepath.Join(directory, bpf.DatapathMapRows))
}

// The marks that each row of a previous version had become those of the groups, with the latest
// time of each: nothing that has just moved seems to be at rest. The rows are copied with them.
func TestRowMarksBecomeGroups(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	exampleState(t, d)
	if err := d.RenewLease(); err != nil {
		t.Fatal(err)
	}
	var beat uint64
	if err := d.maps.Heartbeat.Lookup(uint32(0), &beat); err != nil {
		t.Fatal(err)
	}
	now, first := uint32(beat), uint32(8*forwarding.Rows)
	// The second group is all but one of long ago. Some are later than the heartbeat.
	marks := map[uint32]bpf.DatapathGroupMark{
		first: {Moved: now - 700}, first + 3: {Moved: now - 500, Excepted: now - 900}, first + 7: {Excepted: now + 80},
		first + 8: {Moved: now - 1<<31}, first + 15: {Moved: now + 50}, first + forwarding.Rows - 1: {Excepted: now - 1},
	}
	want := allEntries(t, d)
	pinRowMarks(t, cfg, marks)
	again := openDataplane(t, cfg)
	adoption := again.Adoption()
	if adoption.Kind != Converted || !slices.Contains(adoption.Copied, bpf.DatapathMapGroupMarks) || !slices.Contains(adoption.Copied, bpf.DatapathMapRows) {
		t.Errorf("%+v, want %s, with marks and rows copied", adoption, Converted)
	}
	if got := allEntries(t, again); !reflect.DeepEqual(got, want) {
		t.Errorf("after the conversion: %+v\nbefore: %+v", got, want)
	}
	got := map[uint32]bpf.DatapathGroupMark{}
	err := readMap(again.maps.GroupMarks, func(group uint32, mark bpf.DatapathGroupMark) {
		if mark != (bpf.DatapathGroupMark{}) {
			got[group] = mark
		}
	})
	wanted := map[uint32]bpf.DatapathGroupMark{
		first / 8: {Moved: now - 500, Excepted: now + 80}, first/8 + 1: {Moved: now + 50}, first/8 + 511: {Excepted: now - 1},
	}
	if err != nil || !reflect.DeepEqual(got, wanted) {
		t.Errorf("the groups have %v (%v), want %v", got, err, wanted)
	}
	if err := again.Attach(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(cfg.PinRoot, mapDirectory, previousRowMarks)); !os.IsNotExist(err) {
		t.Errorf("the marks of rows are left: %v", err)
	}
	if kind := openDataplane(t, cfg).Adoption().Kind; kind != Adopted {
		t.Errorf("then %s, want %s", kind, Adopted)
	}
}
