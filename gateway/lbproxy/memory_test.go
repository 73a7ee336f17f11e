// SPDX-License-Identifier: Apache-2.0

package lbproxy

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/millrace-lb/millrace/gateway/proxy"
)

func TestMemoryLimit(t *testing.T) {
	for name, test := range map[string]struct {
		file, text string
		want       int64
	}{
		"version 2":           {"memory.max", "1073741824\n", 1 << 30},
		"version 2, no limit": {"memory.max", "max\n", 0},
		"version 1":           {"memory/memory.limit_in_bytes", "536870912\n", 512 << 20},
		"version 1, no limit": {"memory/memory.limit_in_bytes", "9223372036854771712\n", 0},
		"neither":             {"other", "1", 0},
		"invalid value":       {"memory.max", "many", 0},
	} {
		root := t.TempDir()
		file := filepath.Join(root, test.file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := memoryLimit(root); got != test.want {
			t.Errorf("%s: %d; want %d", name, got, test.want)
		}
	}
}

func TestBoundMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	settings := proxy.Defaults()
	limitMemory(0, &settings)
	if debug.SetMemoryLimit(-1) != before || settings.MaxBytes != proxy.Defaults().MaxBytes {
		t.Error("limits were changed although no memory limit is set")
	}
	t.Setenv("GOMEMLIMIT", "")
	limitMemory(1<<30, &settings)
	if now := debug.SetMemoryLimit(-1); now >= 1<<30 || now < 800<<20 {
		t.Errorf("GC memory limit = %d", now)
	}
	if settings.MaxBytes >= 1<<30 || settings.MaxClientBytes >= settings.MaxBytes/2 || settings.MaxClientBytes == 0 {
		t.Errorf("limit of all clients %d, of one client %d", settings.MaxBytes, settings.MaxClientBytes)
	}
}
