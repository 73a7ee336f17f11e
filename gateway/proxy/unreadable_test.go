// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func TestUnreadableFilters(t *testing.T) {
	for name, filter := range map[string]*resource.Filter{
		"unknown kind": {},
		"rewrite with a path change of unknown kind":  rewriteTo(&resource.Rewrite{Path: &resource.PathChange{}}),
		"redirect with a path change of unknown kind": redirectTo(&resource.Redirect{Path: &resource.PathChange{}}),
		"redirect with an expression":                 redirectTo(&resource.Redirect{Path: expressionPath("/", "/")}),
		"invalid pattern":                             byExpression("(", "/"),
		"invalid substitution":                        byExpression("/", "/$uri"),
		"empty user file":                             password("", "r"),
		"realm with a line break":                     password("u", "a\r\nSet-Cookie: b"),
		"limit without requests and concurrent":       clientLimit(&resource.ClientLimit{}),
		"redirect to another scheme":                  redirectTo(&resource.Redirect{Location: "javascript:alert(1)"}),
		"redirect to an unknown scheme with a host":   redirectTo(&resource.Redirect{Location: "ftp://a.example/"}),
		"redirect to a relative path":                 redirectTo(&resource.Redirect{Location: "a"}),
		"empty address lists":                         addresses(nil, nil),
		"invalid allow list":                          addresses([]string{"198.51.100.0/24", "a"}, nil),
		"invalid deny list":                           addresses(nil, []string{"198.51.100.0/24", ""}),
		"redirect with a line break":                  redirectTo(&resource.Redirect{Location: "/a\r\nSet-Cookie: a"}),
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
		"body limit":   bodyLimit(1),
		"password":     password("u", "r"),
		"client limit": clientLimit(&resource.ClientLimit{Concurrent: 1}),
		"rewrite":      byExpression("/", "/"),
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
