// SPDX-License-Identifier: Apache-2.0

package literal_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/gateway/route/internal/literal"
)

func TestPrefix(t *testing.T) {
	for expression, want := range map[string]string{
		"":                              "",
		"/admin":                        "/admin",
		"^/admin/.*":                    "/admin/",
		"/admin(?!/public).*":           "/admin",
		"/admin(?>/a|/b)":               "/admin",
		"/admin/?":                      "/admin",
		"/admin*":                       "/admi",
		"/a{2}":                         "/",
		"/a+":                           "/a",
		`/a\.b\-c/(?!x)`:                "/a.b-c/",
		`/a\d`:                          "/a",
		`/a\Qb|c`:                       "",
		"/a|/b":                         "",
		"(?!x)/a":                       "",
		"(?i)/a":                        "",
		"/a)|(/b":                       "",
		"/a[|]b":                        "/a",
		"/a[](]|/b":                     "",
		"/a[[:alpha:](]|/b":             "",
		"/a[]|]b":                       "/a",
		"/a[]|]b|c":                     "",
		"/café(?!x)":                    "/café",
		"/a\xff":                        "/a",
		"/" + strings.Repeat("a", 1000): "/" + strings.Repeat("a", 127),
	} {
		if got := literal.Prefix(expression); got != want {
			t.Errorf("Prefix(%q) = %q; want %q", expression, got, want)
		}
	}
}

func FuzzPrefix(f *testing.F) {
	for _, seed := range [][2]string{{"/a|/b", "/b"}, {"/a?b", "/b"}, {"/a[]|]b", "/a|b"}, {`/\Qa|b\E`, "/a|b"}, {"/a[[:alpha:]|]", "/a|"}, {"(?i)/a", "/A"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, expression, text string) {
		compiled, err := regexp.Compile("^(?:" + expression + ")")
		if _, alone := regexp.Compile(expression); err != nil || alone != nil || !compiled.MatchString(text) {
			return
		}
		if prefix := literal.Prefix(expression); !strings.HasPrefix(text, prefix) {
			t.Fatalf("%q matches %q, which does not begin with %q", expression, text, prefix)
		}
	})
}
