// SPDX-License-Identifier: Apache-2.0

package pathmatch

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzPath(f *testing.F) {
	for _, seed := range []string{"", "/", "//", "/a/", "/a//", "a", "/a b", "/a?b", "/\x7f", "/ä", "/%2f", "/%ff", "/\xff", "/100%", "/%2e./%2f"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		canonical, err := Canonical(path)
		if err != nil {
			return
		}
		if again, err := Canonical(canonical); err != nil && len(canonical) <= MaxPath || err == nil && again != canonical || !utf8.ValidString(canonical) {
			t.Fatalf("Canonical(%q) = %q, and Canonical of that is %q, %v", path, canonical, again, err)
		}
		if prefix := TrimPrefix(canonical); prefix != "/" && strings.HasSuffix(prefix, "/") || !strings.HasPrefix(canonical, prefix) {
			t.Fatalf("TrimPrefix(%q) = %q", path, prefix)
		}
		decoded, err := url.PathUnescape(canonical)
		if err != nil {
			t.Fatalf("Canonical(%q) = %q: %v", path, canonical, err)
		}
		if !regexp.MustCompile("^(?:" + StringPrefix(canonical) + ")$").MatchString(decoded + "x") {
			t.Fatalf("%q does not match its own prefix", path)
		}
	})
}
