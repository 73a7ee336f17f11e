// SPDX-License-Identifier: Apache-2.0

package ownership

import (
	"strings"
	"testing"
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
			got, ok := Intersect(Host(pair[0]), Host(pair[1]))
			if !ok {
				got = "none"
			}
			if string(got) != test.want {
				t.Errorf("intersection of %q and %q = %q, want %q", pair[0], pair[1], got, test.want)
			}
		}
	}
}

// TestHostLength checks the maximum length of RFC 1035, section 2.3.4, without the dot and the length octet
// of the root.
func TestHostLength(t *testing.T) {
	longest := strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("b", 61)
	if _, err := ParseHost(longest); err != nil {
		t.Errorf("%d characters: %v", len(longest), err)
	}
	if _, err := ParseHost(longest + "."); err != nil {
		t.Errorf("%d characters and a trailing dot: %v", len(longest), err)
	}
	if _, err := ParseHost(longest + "b"); err == nil {
		t.Errorf("%d characters: no error", len(longest)+1)
	}
}

func FuzzHost(f *testing.F) {
	for _, seed := range []string{"", ".", "*", "*.", "*.a", "a.", "A.example", "198.51.100.1", "::1", "*.198.51.100.1",
		strings.Repeat("a.", 127), "a-.b", "-a", "ä.example", "a\x00b"} {
		f.Add(seed, "*.example")
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		a, err := ParseHost(first)
		if err != nil {
			return
		}
		again, err := ParseHost(string(a))
		if err != nil || again != a {
			t.Fatalf("%q parsed as %q, and that as %q, %v", first, a, again, err)
		}
		if strings.ToLower(string(a)) != string(a) || strings.HasSuffix(string(a), ".") || len(a) > 253 {
			t.Fatalf("%q parsed as %q", first, a)
		}
		b, err := ParseHost(second)
		if err != nil {
			return
		}
		// In either order, the intersection is one of both names.
		ab, some := Intersect(a, b)
		ba, same := Intersect(b, a)
		if ab != ba || some != same || some && ab != a && ab != b {
			t.Fatalf("intersection of %q and %q = %q, or %q", a, b, ab, ba)
		}
	})
}
