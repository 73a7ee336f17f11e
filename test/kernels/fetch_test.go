// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const content = "the package of a kernel"

func testKernel() kernel {
	long, short := sha256.Sum256([]byte(content)), sha1.Sum([]byte(content))
	return kernel{
		name: "6.1", pkg: "linux-image-test", version: "6.1.1-1",
		sha256: hex.EncodeToString(long[:]), sha1: hex.EncodeToString(short[:]),
	}
}

func gives(what string) source {
	return source{"a mirror that gives", func(_ context.Context, k kernel, directory string) error {
		return os.WriteFile(filepath.Join(directory, k.file()), []byte(what), 0o600)
	}}
}

var errDropped = errors.New("version not found")

func lacks(context.Context, kernel, string) error { return errDropped }

// archive is a server like snapshot.debian.org.
func archive(t *testing.T, files map[string]string) source {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file, ok := files[strings.TrimPrefix(r.URL.Path, "/file/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if _, err := w.Write([]byte(file)); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return source{"an archive", fromServer(server.URL+"/file", func(k kernel) string { return k.sha1 })}
}

func TestKernelIsFetched(t *testing.T) {
	k := testKernel()
	whole := map[string]string{k.sha1: content}
	tests := []struct {
		name    string
		cached  string
		sources []source
		// want is empty for success, else a part of the error.
		want string
	}{
		{name: "in the cache", cached: content, sources: []source{{"a mirror", lacks}}},
		{name: "downloaded from the mirror", sources: []source{gives(content), {"an archive", lacks}}},
		{name: "damaged cache entry", cached: "half", sources: []source{gives(content)}},
		{name: "removed from the mirror", sources: []source{{"a mirror", lacks}, archive(t, whole)}},
		{name: "wrong file on the mirror", sources: []source{gives("other"), archive(t, whole)}},
		{name: "not found", sources: []source{{"a mirror", lacks}, archive(t, nil)}, want: "404 Not Found"},
		{name: "wrong file in the archive", sources: []source{archive(t, map[string]string{k.sha1: "other"})}, want: "SHA-256"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cache := filepath.Join(t.TempDir(), "cache")
			if test.cached != "" {
				if err := errors.Join(os.Mkdir(cache, 0o755), os.WriteFile(filepath.Join(cache, k.file()), []byte(test.cached), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			file, err := k.cached(t.Context(), cache, test.sources)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want %s", err, test.want)
				}
				checkFiles(t, cache)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(file); err != nil || string(got) != content {
				t.Errorf("%s contains %q, %v", file, got, err)
			}
			checkFiles(t, cache, k.file())
		})
	}
}

func checkFiles(t *testing.T, directory string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(want) || (len(want) == 1 && entries[0].Name() != want[0]) {
		t.Errorf("%s contains %v, want %v", directory, entries, want)
	}
}

func TestListOfKernels(t *testing.T) {
	kernels, err := readKernels("kernels.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kernels {
		if len(k.sha256) != 2*sha256.Size || len(k.sha1) != 2*sha1.Size {
			t.Errorf("kernel %s: SHA-256 %q, SHA-1 %q", k.name, k.sha256, k.sha1)
		}
	}
}
