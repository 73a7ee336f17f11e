// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"github.com/millrace-lb/millrace/gateway/resource"
)

// WithMatch returns a copy of a rule with another match. It shares the other fields.
func WithMatch(rule *resource.Rule, match *resource.Match) *resource.Rule {
	return &resource.Rule{
		Route: rule.Route, Match: match, Filters: rule.Filters, Backends: rule.Backends,
		Timeouts: rule.Timeouts, Retry: rule.Retry, SessionPersistence: rule.SessionPersistence,
	}
}

// ClosedRule returns a rule with only the match and the guards of another. It has no backends, so it answers
// 500.
func ClosedRule(of *resource.Rule) *resource.Rule {
	closed := &resource.Rule{Route: of.Route, Match: of.Match}
	for _, filter := range of.Filters {
		switch filter.Kind.(type) {
		case *resource.Filter_ClientAddresses, *resource.Filter_ClientLimit, *resource.Filter_BasicAuthentication,
			*resource.Filter_ExternalAuthorization:
			closed.Filters = append(closed.Filters, filter)
		}
	}
	return closed
}
