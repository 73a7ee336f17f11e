// SPDX-License-Identifier: Apache-2.0

package match

import (
	"strings"
	"testing"
)

func TestHost(t *testing.T) {
	long := strings.Repeat("a.", 127)
	for _, c := range []struct {
		value, host string
		ok          bool
	}{
		{"", "", true},
		{"example.com", "example.com", true},
		{"EXAMPLE.Com", "example.com", true},
		{"example.com.", "example.com", true},
		{"example.com:8080", "example.com", true},
		{"Example.com.:443", "example.com", true},
		{"example.com:", "example.com", true},
		{"198.51.100.1:80", "198.51.100.1", true},
		{"[2001:DB8::1]:443", "2001:db8::1", true},
		{"[2001:db8:0::1]", "2001:db8::1", true},
		{long[:253], long[:253], true},
		{long + "a", "", false},
		{"example.com..", "", false},
		{".example.com", "", false},
		{"a..b", "", false},
		{".", "", false},
		{"example.com:80:80", "", false},
		{"example.com:http", "", false},
		{"example.com:123456", "", false},
		{"2001:db8::1", "", false},
		{"[2001:db8::1", "", false},
		{"[2001:db8::1]x", "", false},
		{"[198.51.100.1]", "", false},
		{"[fe80::1%25eth0]", "", false},
		{"exa mple.com", "", false},
		{"user@example.com", "", false},
		{"example.com/path", "", false},
		{"*.example.com", "", false},
		{"exämple.com", "", false},
		{"example.com\x00", "", false},
	} {
		host, ok := Host(c.value)
		if ok != c.ok || ok && host != c.host {
			t.Errorf("Host(%q) = %q, %v; want %q, %v", c.value, host, ok, c.host, c.ok)
		}
	}
}

// FuzzServerName checks that TLS and HTTP agree; otherwise requests could bypass client validation.
func FuzzServerName(f *testing.F) {
	for _, seed := range []string{"A.example.", "a", "a.b.", "..", "A:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		fromTLS, ok := ServerName(name)
		if !ok {
			return
		}
		fromHTTP, ok := Host(name)
		if !ok || fromHTTP != fromTLS {
			t.Fatalf("Host(%q) = %q, %v; ServerName returns %q", name, fromHTTP, ok, fromTLS)
		}
		if again, ok := ServerName(fromTLS); !ok || again != fromTLS {
			t.Fatalf("ServerName(%q) = %q, %v; want it unchanged", fromTLS, again, ok)
		}
	})
}

func TestPath(t *testing.T) {
	for path, want := range map[string]string{
		"/":             "/",
		"*":             "*",
		"../.":          "../.",
		"/a/b":          "/a/b",
		"/a/./b":        "/a/b",
		"/a/../b":       "/b",
		"/a/..":         "/",
		"/a/.":          "/a/",
		"/..":           "/",
		"/../../a":      "/a",
		"/a/b/../../..": "/",
		"/.well-known":  "/.well-known",
		"/a/...":        "/a/...",
		"/a//../b":      "/b",
		"//a/.":         "/a/",
		"//":            "/",
		"///a":          "/a",
		"/.//a":         "/a",
		"/x/..//a":      "/a",
		"/a//b":         "/a/b",
		"/a/b//":        "/a/b/",
		"/a/..//":       "/",
		"/a/b/..":       "/a/",
		"/a/.b//..c":    "/a/.b/..c",
	} {
		if got := Path(path); got != want {
			t.Errorf("Path(%q) = %q; want %q", path, got, want)
		}
	}
}

// FuzzPath checks for neither dot segments nor empty elements, and that isPlain is exact.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{"/", "/a//../b", "//a", "/a/./", "/a/..", "/.a//b.", "*"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		canonical := Path(path)
		if !strings.HasPrefix(path, "/") {
			if canonical != path {
				t.Fatalf("Path(%q) = %q, want a leading slash", path, canonical)
			}
			return
		}
		elements := strings.Split(canonical, "/")
		for i, element := range elements {
			if element == "." || element == ".." || element == "" && i > 0 && i < len(elements)-1 {
				t.Fatalf("Path(%q) = %q", path, canonical)
			}
		}
		if again := Path(canonical); elements[0] != "" || again != canonical {
			t.Fatalf("Path(%q) = %q, and Path of that is %q", path, canonical, again)
		}
		if got, want := IsForwardable(path), strings.Trim(mergeSlashes(path), "/") == strings.Trim(canonical, "/") && !strings.HasPrefix(path, "//"); got != want {
			t.Fatalf("IsForwardable(%q) = %v, want %v", path, got, want)
		}
	})
}

func mergeSlashes(path string) string {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	return path
}
