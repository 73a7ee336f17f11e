// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func kept(tb interface{ Fatal(...any) }, path string) (version string, versions map[string]string) {
	versions = map[string]string{}
	if err := (&Store{Path: path}).Load(func(part *discovery.DeltaDiscoveryResponse) error {
		for _, name := range part.GetRemovedResources() {
			delete(versions, name)
		}
		for _, r := range part.GetResources() {
			versions[r.GetName()] = r.GetVersion()
		}
		if part.GetSystemVersionInfo() != "" {
			version = part.GetSystemVersionInfo()
		}
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
	return version, versions
}

func authority(name string, content []byte) *resource.Resource {
	return &resource.Resource{Name: name, Kind: &resource.Resource_CertificateAuthority{
		CertificateAuthority: &resource.CertificateAuthority{Certificates: content},
	}}
}

// TestStoreRecoversFromTruncation checks the content after each change, and after a truncation within the
// last record.
func TestStoreRecoversFromTruncation(t *testing.T) {
	directory := t.TempDir()
	number := 0
	rapid.Check(t, func(t *rapid.T) {
		number++
		path := filepath.Join(directory, fmt.Sprint(number))
		store := &Store{Path: path}
		all := map[string]received{}
		want := map[string]string{}
		for step := range rapid.IntRange(1, 8).Draw(t, "steps") {
			before, length := maps.Clone(want), size(t, path)
			update := Update{Version: fmt.Sprint(step)}
			content := make([]byte, rapid.SampledFrom([]int{1, 100, 400_000}).Draw(t, "bytes"))
			for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 9), 0, 3, rapid.ID[int]).Draw(t, "names") {
				name := fmt.Sprint("resource-", i)
				if _, known := all[name]; known && rapid.Bool().Draw(t, "remove") {
					update.Removed = append(update.Removed, name)
					delete(all, name)
					delete(want, name)
					continue
				}
				all[name] = received{fmt.Sprint(step), authority(name, content)}
				update.Changed, want[name] = append(update.Changed, all[name].resource), fmt.Sprint(step)
			}
			if err := store.Save(update, all); err != nil {
				t.Fatal(err)
			}
			if version, got := kept(t, path); version != update.Version || !maps.Equal(got, want) {
				t.Fatalf("version %s contains %v, want %s with %v", version, got, update.Version, want)
			}
			added := size(t, path) - length
			if step == 0 || store.changes == 0 {
				continue
			}
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			cut := rapid.Int64Range(0, added-1).Draw(t, "cut")
			torn := path + ".torn"
			if err := os.WriteFile(torn, whole[:length+cut], 0o600); err != nil {
				t.Fatal(err)
			}
			if version, got := kept(t, torn); version != fmt.Sprint(step-1) || !maps.Equal(got, before) {
				t.Fatalf("truncated file: version %s contains %v, want %d with %v", version, got, step-1, before)
			}
		}
	})
}

func size(t *rapid.T, path string) int64 {
	found, err := os.Stat(path)
	if os.IsNotExist(err) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return found.Size()
}

func TestStoreRefusesDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kept")
	store := &Store{Path: path}
	all := map[string]received{"a": {"1", authority("a", []byte("content"))}}
	if err := store.Save(Update{Version: "1"}, all); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, len(magic) + recordHeader + 2} {
		damaged := append([]byte{}, content...)
		damaged[at] ^= 1
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := store.Load(func(*discovery.DeltaDiscoveryResponse) error { return nil }); err == nil {
			t.Errorf("no error for a file with byte %d changed", at)
		}
	}
}

func TestStoreWritesAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kept")
	store := &Store{Path: path}
	all := map[string]received{"a": {"1", authority("a", nil)}}
	if err := store.Save(Update{Version: "1"}, all); err != nil {
		t.Fatal(err)
	}
	if err := store.journal.Close(); err != nil {
		t.Fatal(err)
	}
	if err := store.Save(Update{Version: "2"}, all); err == nil {
		t.Fatal("no error for a write to a closed file")
	}
	all["b"] = received{"3", authority("b", nil)}
	if err := store.Save(Update{Version: "3"}, all); err != nil {
		t.Fatal(err)
	}
	if version, got := kept(t, path); version != "3" || len(got) != 2 {
		t.Errorf("version %s contains %v", version, got)
	}
}
