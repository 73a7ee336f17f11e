// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// newNode pins two tables that forget and one that does not, with entries, in a bpf file
// system of its own.
func newNode(t *testing.T) (node, *ebpf.Map) {
	t.Helper()
	root := t.TempDir()
	if err := unix.Mount("bpf", root, "bpf", 0, ""); err != nil {
		t.Fatalf("mount a bpf file system: %v: be root", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	directory := filepath.Join(root, "maps")
	if err := os.Mkdir(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	var kept *ebpf.Map
	for name, kind := range map[string]ebpf.MapType{"connections4": ebpf.LRUHash, "reverse4": ebpf.LRUHash, "frontends4": ebpf.Hash, "exceptions": ebpf.Array} {
		table, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: kind, KeySize: 4, ValueSize: 4, MaxEntries: 1024})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { table.Close() })
		for key := range uint32(100) {
			if err := table.Put(key, key+1); err != nil {
				t.Fatal(err)
			}
		}
		if err := table.Pin(filepath.Join(directory, name)); err != nil {
			t.Fatal(err)
		}
		if name == "frontends4" {
			kept = table
		}
	}
	return node{root: root}, kept
}

func output(t *testing.T, run func(*bytes.Buffer) error) map[string]int {
	t.Helper()
	var out bytes.Buffer
	if err := run(&out); err != nil {
		t.Fatal(err)
	}
	var counts map[string]int
	if err := json.Unmarshal(out.Bytes(), &counts); err != nil {
		t.Fatal(err)
	}
	return counts
}

func TestWipe(t *testing.T) {
	n, kept := newNode(t)
	count := func() map[string]int {
		return output(t, func(out *bytes.Buffer) error { return n.count(out, nil) })
	}
	if got, want := count(), map[string]int{"connections4": 100, "reverse4": 100, "exceptions": 100}; !maps.Equal(got, want) {
		t.Fatalf("count is %v, want %v", got, want)
	}
	got := output(t, func(out *bytes.Buffer) error { return n.wipe(out, []string{"reverse"}) })
	if want := map[string]int{"reverse4": 100}; !maps.Equal(got, want) {
		t.Errorf("wiped %v, want %v", got, want)
	}
	if got, want := count(), map[string]int{"connections4": 100, "reverse4": 0, "exceptions": 100}; !maps.Equal(got, want) {
		t.Errorf("count is %v, want %v", got, want)
	}
	got = output(t, func(out *bytes.Buffer) error { return n.wipe(out, nil) })
	if want := map[string]int{"connections4": 100, "exceptions": 100}; !maps.Equal(got, want) {
		t.Errorf("wiped %v, want %v", got, want)
	}
	var value uint32
	if err := kept.Lookup(uint32(99), &value); err != nil {
		t.Errorf("what the agent wrote was wiped, too: %v", err)
	}
}

func TestNothingPinned(t *testing.T) {
	n := node{root: t.TempDir()}
	for name, run := range map[string]func(*bytes.Buffer) error{
		"count":    func(out *bytes.Buffer) error { return n.count(out, nil) },
		"programs": func(out *bytes.Buffer) error { return n.programs(out, nil) },
	} {
		if err := run(&bytes.Buffer{}); err == nil {
			t.Errorf("%s without pins: want an error", name)
		}
	}
}
