// SPDX-License-Identifier: Apache-2.0

// Package pathmatch validates and converts paths and regular expressions of rules. It is pure.
package pathmatch

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/literal"
)

// Canonical returns the form of a path that is compared with request paths, or an error if no request can
// have the path.
func Canonical(path string) (string, error) {
	switch {
	case !strings.HasPrefix(path, "/"):
		return "", fmt.Errorf("%q does not begin with /", path)
	case len(path) > MaxPath:
		return "", fmt.Errorf("the path has %d characters, the limit is %d", len(path), MaxPath)
	case !utf8.ValidString(path):
		return "", fmt.Errorf("%q is not valid UTF-8", path)
	case strings.ContainsAny(path, "?#"):
		return "", errors.New("a path must not contain ? or #")
	}
	return plan.CanonicalPath(path), nil
}

// MaxPath is the maximum length of a path in Gateway API. It applies to Ingresses, too.
const MaxPath = 1024

// TrimPrefix removes the trailing slash of a canonical prefix, because /a/ and /a match the same paths.
func TrimPrefix(path string) string {
	if trimmed := strings.TrimSuffix(path, "/"); trimmed != "" {
		return trimmed
	}
	return "/"
}

// StringPrefix returns an expression for all paths that start with a canonical path.
func StringPrefix(path string) string {
	decoded := Decoded(&resource.PathMatch{Value: path})
	var expression strings.Builder
	for at, size := 0, 0; at < len(decoded); at += size {
		var char rune
		if char, size = utf8.DecodeRuneInString(decoded[at:]); char == utf8.RuneError && size == 1 {
			// Other bytes cannot be in an expression, which is UTF-8.
			expression.WriteString("(?s:.)")
		} else {
			expression.WriteString(regexp.QuoteMeta(decoded[at : at+size]))
		}
	}
	return expression.String() + "(?s:.*)"
}

// Superset returns a match for all paths that an invalid expression could match.
func Superset(expression string) *resource.PathMatch {
	return &resource.PathMatch{
		Kind: resource.PathMatch_REGULAR_EXPRESSION, Value: regexp.QuoteMeta(literal.Prefix(expression)) + "(?s:.*)",
	}
}

// Decoded returns the path of a match without percent-encoding.
func Decoded(of *resource.PathMatch) string {
	decoded, _ := url.PathUnescape(of.GetValue())
	return decoded
}
