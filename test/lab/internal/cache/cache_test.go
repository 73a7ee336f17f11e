// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"
)

func testTree() fstest.MapFS {
	return fstest.MapFS{
		"tool/main.go":      {Data: []byte("package main")},
		"tool/sub/x.go":     {Data: []byte("package sub")},
		"tool/go.mod":       {Data: []byte("module tool")},
		"tool/go.sum":       {Data: []byte("sum")},
		"tool/README.md":    {Data: []byte("words")},
		"tool/main_test.go": {Data: []byte("package main")},
		"other/main.go":     {Data: []byte("package main")},
	}
}

func TestKeyChanges(t *testing.T) {
	base := Target{Name: "tool", Dir: "tool", Packages: []string{"."}}
	key := func(target Target, tree fstest.MapFS, version string) string {
		t.Helper()
		key, err := target.Key(tree, version)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	with := func(name, content string) fstest.MapFS {
		tree := testTree()
		tree[name] = &fstest.MapFile{Data: []byte(content)}
		return tree
	}
	want := key(base, testTree(), "go1")

	for name, same := range map[string]string{
		"again":            key(base, testTree(), "go1"),
		"other text files": key(base, with("tool/README.md", "more"), "go1"),
		"other tests":      key(base, with("tool/main_test.go", "package x"), "go1"),
		"other directory":  key(base, with("other/main.go", "package x"), "go1"),
	} {
		if same != want {
			t.Errorf("%s: the key changed", name)
		}
	}
	tagged, cgo, flagged, tests := base, base, base, base
	tagged.Tags, cgo.CGO, flagged.LDFlags, tests.Test = []string{"x"}, true, []string{"-X a=b"}, true
	keys := []string{
		want,
		key(tests, testTree(), "go1"),
		key(tests, with("tool/main_test.go", "package x"), "go1"),
		key(base, testTree(), "go2"),
		key(base, with("tool/main.go", "package main // x"), "go1"),
		key(base, with("tool/sub/y.go", "package sub"), "go1"),
		key(base, with("tool/go.mod", "module tool2"), "go1"),
		key(base, with("tool/go.sum", "sum2"), "go1"),
		key(tagged, testTree(), "go1"),
		key(cgo, testTree(), "go1"),
		key(flagged, testTree(), "go1"),
	}
	slices.Sort(keys)
	if unique := slices.Compact(slices.Clone(keys)); len(unique) != len(keys) {
		t.Errorf("different inputs have equal keys: %v", keys)
	}
}

func TestFill(t *testing.T) {
	store := &Cache{dir: filepath.Join(t.TempDir(), "cache")}
	directory := filepath.Join(store.dir, "tool-1")
	failure := errors.New("no compiler")
	if err := store.fill(t.Context(), directory, func(string) error { return failure }); !errors.Is(err, failure) {
		t.Fatalf("got %v, want %v", err, failure)
	}
	if drafts, err := filepath.Glob(filepath.Join(store.dir, ".draft-*")); err != nil || len(drafts) != 0 {
		t.Fatalf("a failed build left %v (%v)", drafts, err)
	}
	calls := 0
	build := func(draft string) error {
		calls++
		return os.WriteFile(filepath.Join(draft, "tool"), nil, 0o755)
	}
	for range 2 {
		if err := store.fill(t.Context(), directory, build); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 1 {
		t.Errorf("built %d times, want once", calls)
	}
	if _, err := os.Stat(filepath.Join(directory, "tool")); err != nil {
		t.Error(err)
	}
}

// Of two concurrent builds one waits for the other.
func TestFillAtOnce(t *testing.T) {
	var reports atomic.Int32
	store := &Cache{dir: filepath.Join(t.TempDir(), "cache"), progress: func(string, ...any) { reports.Add(1) }}
	directory := filepath.Join(store.dir, "tool-1")
	builds := 0
	fill := func(held func()) error {
		return store.fill(t.Context(), directory, func(draft string) error {
			builds++
			held()
			return os.WriteFile(filepath.Join(draft, "tool"), nil, 0o755)
		})
	}
	second := make(chan error, 1)
	first := fill(func() {
		go func() { second <- fill(func() {}) }()
		for deadline := time.Now().Add(20 * time.Second); reports.Load() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Error("the second lab does not report that it is waiting")
				return
			}
		}
	})
	if err := errors.Join(first, <-second); err != nil || builds != 1 {
		t.Errorf("%d builds, want one; %v", builds, err)
	}
}

// Stale drafts of a target are deleted, others are not.
func TestFillRemovesStaleDrafts(t *testing.T) {
	store := &Cache{dir: filepath.Join(t.TempDir(), "cache")}
	stale, other := filepath.Join(store.dir, ".draft-tool-1-123"), filepath.Join(store.dir, ".draft-tool-2-123")
	for _, draft := range []string{stale, other} {
		if err := os.MkdirAll(draft, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.fill(t.Context(), filepath.Join(store.dir, "tool-1"), func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stale draft: %v, want it removed", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}
