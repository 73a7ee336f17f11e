// SPDX-License-Identifier: Apache-2.0

package route

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestIntersect(t *testing.T) {
	for _, test := range []struct{ a, b, want string }{
		{"", "", ""},
		{"", "a.example", "a.example"},
		{"a.example", "a.example", "a.example"},
		{"a.example", "b.example", "none"},
		{"*.example", "a.example", "a.example"},
		{"*.example", "a.b.example", "a.b.example"},
		{"*.example", "example", "none"},
		{"*.example", "*.a.example", "*.a.example"},
		{"*.example", "*.example", "*.example"},
		{"*.a.example", "*.b.example", "none"},
		{"*.example", "aexample", "none"},
	} {
		for _, pair := range [][2]string{{test.a, test.b}, {test.b, test.a}} {
			got, ok := intersect(hostname(pair[0]), hostname(pair[1]))
			if !ok {
				got = "none"
			}
			if string(got) != test.want {
				t.Errorf("%q and %q have %q in common, want %q", pair[0], pair[1], got, test.want)
			}
		}
	}
}

func FuzzHostname(f *testing.F) {
	for _, seed := range []string{"", ".", "*", "*.", "*.a", "a.", "A.example", "198.51.100.1", "::1", "*.198.51.100.1",
		strings.Repeat("a.", 127), "a-.b", "-a", "ä.example", "a\x00b"} {
		f.Add(seed, "*.example")
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		a, err := parseHostname(first)
		if err != nil {
			return
		}
		again, err := parseHostname(string(a))
		if err != nil || again != a {
			t.Fatalf("%q is read as %q, and that as %q, %v", first, a, again, err)
		}
		if strings.ToLower(string(a)) != string(a) || strings.HasSuffix(string(a), ".") || len(a) > 253 {
			t.Fatalf("%q is read as %q", first, a)
		}
		b, err := parseHostname(second)
		if err != nil {
			return
		}
		// What both have in common is one of the two, whichever comes first.
		ab, some := intersect(a, b)
		ba, same := intersect(b, a)
		if ab != ba || some != same || some && ab != a && ab != b {
			t.Fatalf("%q and %q have %q, or %q", a, b, ab, ba)
		}
	})
}

func FuzzPath(f *testing.F) {
	for _, seed := range []string{"", "/", "//", "/a/", "/a//", "a", "/a b", "/a?b", "/\x7f", "/ä", "/%2f", "/%ff", "/\xff", "/100%", "/%2e./%2f"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		canonical, err := canonicalPath(path)
		if err != nil {
			return
		}
		if again, err := canonicalPath(canonical); err != nil && len(canonical) <= maxPath || err == nil && again != canonical || !utf8.ValidString(canonical) {
			t.Fatalf("%q has the canonical form %q, and that %q, %v", path, canonical, again, err)
		}
		if prefix := trimPrefix(canonical); prefix != "/" && strings.HasSuffix(prefix, "/") || !strings.HasPrefix(canonical, prefix) {
			t.Fatalf("%q has the prefix %q", path, prefix)
		}
		decoded, err := url.PathUnescape(canonical)
		if err != nil {
			t.Fatalf("%q has the canonical form %q: %v", path, canonical, err)
		}
		if !regexp.MustCompile("^(?:" + literalExpression(canonical) + ")$").MatchString(decoded + "x") {
			t.Fatalf("%q is no prefix of itself", path)
		}
	})
}
