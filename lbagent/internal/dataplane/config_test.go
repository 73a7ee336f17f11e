// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
)

// The free entries of the CPUs are additional to an LRU's capacity; with 128 CPUs they would fill a table of
// 16,384 entries.
func TestTablesHaveFreeEntries(t *testing.T) {
	cfg := smallConfig("unused")
	spec, err := newSpec(cfg)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	free, tables := uint32(freePerCPU*ebpf.MustPossibleCPU()), 0
	for name, m := range spec.Maps {
		if m.Type != ebpf.LRUHash {
			continue
		}
		tables++
		if wanted := max(plain.Maps[name].MaxEntries, minOthers); m.MaxEntries < wanted+free {
			t.Errorf("table %s has %d entries, want at least %d plus %d for the per-CPU free lists", name, m.MaxEntries, wanted, free)
		}
	}
	if tables < 16 {
		t.Errorf("only %d tables were checked", tables)
	}
}
