// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"github.com/millrace-lb/millrace/gateway/resource"
)

// WithMatch returns a copy that shares all but the match.
func WithMatch(rule *resource.Rule, match *resource.Match) *resource.Rule {
	return &resource.Rule{
		Route: rule.Route, Match: match, Filters: rule.Filters, Backends: rule.Backends,
		Timeouts: rule.Timeouts, Retry: rule.Retry, SessionPersistence: rule.SessionPersistence,
	}
}

// ClosedRule returns the rule with its match and guards only. Without backends it answers 500.
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
