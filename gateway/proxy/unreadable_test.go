// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func TestUnreadableFilters(t *testing.T) {
	for name, filter := range map[string]*resource.Filter{
		"of an unknown kind":                     {},
		"a path change of an unknown kind":       rewriteTo(&resource.Rewrite{Path: &resource.PathChange{}}),
		"a redirect's of an unknown kind":        redirectTo(&resource.Redirect{Path: &resource.PathChange{}}),
		"a redirect by an expression":            redirectTo(&resource.Redirect{Path: expressionPath("/", "/")}),
		"a pattern":                              byExpression("(", "/"),
		"a substitution":                         byExpression("/", "/$uri"),
		"a password of nobody":                   password("", "r"),
		"a realm of two lines":                   password("u", "a\r\nSet-Cookie: b"),
		"neither requests nor concurrent is set": clientLimit(&resource.ClientLimit{}),
		"a redirect to another scheme":           redirectTo(&resource.Redirect{Location: "javascript:alert(1)"}),
		"a redirect to a scheme with a host":     redirectTo(&resource.Redirect{Location: "ftp://a.example/"}),
		"a redirect to a relative path":          redirectTo(&resource.Redirect{Location: "a"}),
		"addresses of nobody":                    addresses(nil, nil),
		"an allow list":                          addresses([]string{"198.51.100.0/24", "a"}, nil),
		"a deny list":                            addresses(nil, []string{"198.51.100.0/24", ""}),
		"a redirect to two lines":                redirectTo(&resource.Redirect{Location: "/a\r\nSet-Cookie: a"}),
	} {
		if _, err := newFilters("r", []*resource.Filter{filter}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := newFilters("r", []*resource.Filter{password("u", "r"), password("v", "r")}); err == nil {
		t.Error("two passwords: no error")
	}
}

func TestGuardsAreOfRules(t *testing.T) {
	for name, filter := range map[string]*resource.Filter{
		"addresses":    addresses([]string{"127.0.0.0/8"}, nil),
		"a body limit": bodyLimit(1),
		"a password":   password("u", "r"),
		"a limit":      clientLimit(&resource.ClientLimit{Concurrent: 1}),
		"a rewrite":    byExpression("/", "/"),
	} {
		rule := toward("/", "a")
		rule.Backends[0].Filters = []*resource.Filter{filter}
		if _, err := newRule(rule); err == nil {
			t.Errorf("%s of a backend: no error", name)
		}
	}
}

func expressionPath(pattern, substitution string) *resource.PathChange {
	return &resource.PathChange{Kind: &resource.PathChange_Expression{
		Expression: &resource.ExpressionChange{Pattern: pattern, Substitution: substitution},
	}}
}
