// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// TestUnreadableFilters: a filter that cannot be read is refused, and does not do nothing.
func TestUnreadableFilters(t *testing.T) {
	for name, filter := range map[string]*resource.Filter{
		"of an unknown kind":                 {},
		"a path change of an unknown kind":   rewriteTo(&resource.Rewrite{Path: &resource.PathChange{}}),
		"a redirect's of an unknown kind":    redirectTo(&resource.Redirect{Path: &resource.PathChange{}}),
		"a redirect by an expression":        redirectTo(&resource.Redirect{Path: expressionPath("/", "/")}),
		"a redirect to another scheme":       redirectTo(&resource.Redirect{Location: "javascript:alert(1)"}),
		"a redirect to a scheme with a host": redirectTo(&resource.Redirect{Location: "ftp://a.example/"}),
		"a redirect to a relative path":      redirectTo(&resource.Redirect{Location: "a"}),
		"a redirect to two lines":            redirectTo(&resource.Redirect{Location: "/a\r\nSet-Cookie: a"}),
	} {
		if _, err := newFilters([]*resource.Filter{filter}); err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}

func expressionPath(pattern, substitution string) *resource.PathChange {
	return &resource.PathChange{Kind: &resource.PathChange_Expression{
		Expression: &resource.ExpressionChange{Pattern: pattern, Substitution: substitution},
	}}
}
