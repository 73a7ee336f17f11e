// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
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
		"again":          key(base, testTree(), "go1"),
		"other words":    key(base, with("tool/README.md", "more"), "go1"),
		"other tests":    key(base, with("tool/main_test.go", "package x"), "go1"),
		"another folder": key(base, with("other/main.go", "package x"), "go1"),
	} {
		if same != want {
			t.Errorf("%s: the key changed", name)
		}
	}
	tagged, cgo, flagged := base, base, base
	tagged.Tags, cgo.CGO, flagged.LDFlags = []string{"x"}, true, []string{"-X a=b"}
	keys := []string{
		want,
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
		t.Errorf("different inputs give the same key: %v", keys)
	}
}

func TestTargets(t *testing.T) {
	root := os.DirFS("../../../..")
	for _, target := range Targets() {
		if _, err := target.Key(root, "go"); err != nil {
			t.Errorf("%s: %v", target.Name, err)
		}
		if args := strings.Join(target.arguments("/out"), " "); !strings.Contains(args, "-trimpath -o /out/") {
			t.Errorf("%s: arguments %q", target.Name, args)
		}
	}
}

func TestFill(t *testing.T) {
	store := &Cache{dir: filepath.Join(t.TempDir(), "cache")}
	folder := filepath.Join(store.dir, "tool-1")
	failure := errors.New("no compiler")
	if err := store.fill(folder, func(string) error { return failure }); !errors.Is(err, failure) {
		t.Fatalf("got %v, want %v", err, failure)
	}
	if entries, err := os.ReadDir(store.dir); err != nil || len(entries) != 0 {
		t.Fatalf("a failed build leaves %v (%v)", entries, err)
	}
	calls := 0
	build := func(draft string) error {
		calls++
		return os.WriteFile(filepath.Join(draft, "tool"), nil, 0o755)
	}
	for range 2 {
		if err := store.fill(folder, build); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 1 {
		t.Errorf("built %d times, want once", calls)
	}
	if _, err := os.Stat(filepath.Join(folder, "tool")); err != nil {
		t.Error(err)
	}
}

// TestFillRace has another lab finish the same folder first.
func TestFillRace(t *testing.T) {
	store := &Cache{dir: filepath.Join(t.TempDir(), "cache")}
	folder := filepath.Join(store.dir, "tool-1")
	err := store.fill(folder, func(draft string) error {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(folder, "tool"), nil, 0o755)
	})
	if err != nil {
		t.Errorf("got %v, want the other's folder to be taken", err)
	}
}

func TestReporter(t *testing.T) {
	report := &reporter{}
	text := "go: downloading example.com/a v1.0.0\ninternal/cpu\nexample.com/a\n# example.com/a\na.go:1:2: undefined: x"
	for i := range text {
		if _, err := report.Write([]byte(text[i : i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if report.modules != 1 || report.compiled != 2 {
		t.Errorf("%d modules and %d packages, want 1 and 2", report.modules, report.compiled)
	}
	if got, want := report.String(), "2 packages compiled, now after example.com/a"; got != want {
		t.Errorf("says %q, want %q", got, want)
	}
	if want := "# example.com/a\na.go:1:2: undefined: x"; report.rest() != want {
		t.Errorf("rest %q, want %q", report.rest(), want)
	}
}
