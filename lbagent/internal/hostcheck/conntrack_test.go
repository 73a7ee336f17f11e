// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"os"
	"path/filepath"
	"testing"
)

func TestConntrackTable(t *testing.T) {
	var c conntrackTable
	for _, step := range []struct {
		count, limit uint64
		changed      bool
		text         string
	}{
		{0, 0, false, ""},
		{899, 1000, false, ""},
		{900, 1000, true, "1000"},
		{1000, 1000, false, "1000"},
		{800, 1000, false, "1000"},
		{799, 1000, true, ""},
		{1000, 1000, true, "1000"},
		{1000, 2000, true, ""},
		{1000, 1000, true, "1000"},
		{1000, 0, true, ""},
	} {
		if changed := c.observe(step.count, step.limit); changed != step.changed || c.text() != step.text {
			t.Errorf("%d of %d: changed %t, text %q, want %t, %q", step.count, step.limit, changed, c.text(), step.changed, step.text)
		}
		if got := len(c.problems()); got != min(len(step.text), 1) {
			t.Errorf("%d of %d: %d problems", step.count, step.limit, got)
		}
	}
}

func TestReadConntrack(t *testing.T) {
	dir := t.TempDir()
	if count, limit, err := readConntrack(dir); count != 0 || limit != 0 || err != nil {
		t.Errorf("without conntrack: %d of %d, error %v", count, limit, err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("nf_conntrack_count", "17\n")
	write("nf_conntrack_max", "262144\n")
	if count, limit, err := readConntrack(dir); count != 17 || limit != 262144 || err != nil {
		t.Errorf("readConntrack = %d of %d, error %v", count, limit, err)
	}
	write("nf_conntrack_max", "many\n")
	if _, _, err := readConntrack(dir); err == nil {
		t.Error("no error for an invalid limit")
	}
	if _, _, err := readConntrack(conntrackDir); err != nil {
		t.Errorf("conntrack table of this kernel: %v", err)
	}
}
