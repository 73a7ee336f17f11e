// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// routeObject returns the object of a rule: "httproute/ns/name" of "httproute/ns/name/0".
func routeObject(rule *resource.Rule) string {
	parts := strings.SplitN(rule.GetRoute(), "/", 4)
	return strings.Join(parts[:min(len(parts), 3)], "/")
}

// partOfGroup replaces all rules of a faulty object by its previous ones, so that a route never mixes versions,
// or by 500 responses. Rules of other objects are unchanged.
func (s *fallback) partOfGroup(of *rejected, wanted *resource.RouteGroup) *resource.Resource {
	name := of.wanted.GetName()
	bad, unmatched := s.badObjects(wanted)
	previous := s.old.resources[name].GetRouteGroup()
	kept := s.previousRules(name, wanted, bad)
	of.refusals, of.failing = nil, map[string]bool{}
	for _, object := range slices.Sorted(maps.Keys(bad)) {
		of.refusals = append(of.refusals, &resource.Refusal{
			Resource: name, Route: object, Reason: bad[object].Error(), Retained: len(kept[object]) > 0,
		})
		of.failing[object] = len(kept[object]) == 0
	}
	var others, before []*resource.Rule
	for i, rule := range wanted.GetRules() {
		switch object := routeObject(rule); {
		case bad[object] == nil:
			others = append(others, rule)
		case of.failing[object] && !unmatched[i]:
			others = append(others, &resource.Rule{Route: rule.GetRoute(), Match: rule.GetMatch()})
		}
	}
	for _, rule := range previous.GetRules() {
		if len(kept[routeObject(rule)]) > 0 {
			before = append(before, rule)
		}
	}
	for _, at := range wanted.GetListeners() {
		// A rejected listener is reported itself.
		if s.find(at).GetListener() == nil && s.refused[at] == nil {
			of.refusals = append(of.refusals, &resource.Refusal{Resource: name, Reason: missing(of.wanted, "listener", at).Error()})
		}
	}
	return &resource.Resource{Name: name, Kind: &resource.Resource_RouteGroup{RouteGroup: &resource.RouteGroup{
		Listeners: s.listeners(wanted), Hostname: wanted.GetHostname(), Rules: mergePrevious(others, before, previous),
	}}}
}

// badObjects returns the errors of objects with faulty rules; unmatched rules have an invalid match.
func (s *fallback) badObjects(group *resource.RouteGroup) (bad map[string]error, unmatched map[int]bool) {
	bad, unmatched = map[string]error{}, map[int]bool{}
	for i, rule := range group.GetRules() {
		_, err := match.Compile([]*resource.Match{rule.GetMatch()})
		if err != nil {
			unmatched[i] = true
		} else {
			err = s.action(rule)
		}
		if object := routeObject(rule); err != nil && bad[object] == nil {
			bad[object] = fmt.Errorf("rule %d (%s): %w", i, rule.GetRoute(), err)
		}
	}
	return bad, unmatched
}

// action validates everything except the match of a rule.
func (s *fallback) action(rule *resource.Rule) error {
	made, err := newRule(rule)
	if err != nil {
		return err
	}
	for _, name := range made.names() {
		if s.find(name).GetBackend() == nil {
			return fmt.Errorf("backend %q is not in the configuration", name)
		}
	}
	if password := made.filters.guards.password; password != nil && s.find(password.GetUsers()).GetUsers() == nil {
		return fmt.Errorf("users %q are not in the configuration", password.GetUsers())
	}
	return nil
}

// previousRules returns served rules of faulty objects that are all valid and at least as restrictive as the
// wanted ones.
func (s *fallback) previousRules(name string, wanted *resource.RouteGroup, bad map[string]error) map[string][]*resource.Rule {
	kept, useless, previous := map[string][]*resource.Rule{}, map[string]bool{}, s.old.resources[name].GetRouteGroup()
	if before := s.before[name]; before != nil {
		maps.Copy(useless, before.failing)
	}
	for _, rule := range previous.GetRules() {
		object := routeObject(rule)
		if bad[object] == nil {
			continue
		}
		if s.action(rule) != nil {
			useless[object] = true
		}
		kept[object] = append(kept[object], rule)
	}
	maps.DeleteFunc(kept, func(object string, _ []*resource.Rule) bool {
		return useless[object] || !isAsRestrictive(object, wanted, previous)
	})
	return kept
}

// precedence ranks as Gateway API does, and as Ingress for two rules that can match the same request.
func precedence(rule *resource.Rule) [5]int {
	of, kind := rule.GetMatch(), 0
	switch of.GetPath().GetKind() {
	case resource.PathMatch_EXACT:
		kind = 2
	case resource.PathMatch_REGULAR_EXPRESSION:
		kind = 1
	}
	method := 0
	if of.GetMethod() != "" {
		method = 1
	}
	return [5]int{kind, len(of.GetPath().GetValue()), method, len(of.GetHeaders()), len(of.GetQueryParameters())}
}

// mergePrevious merges two lists sorted by precedence. Of equal ranks the previous order decides; new rules
// precede.
func mergePrevious(others, before []*resource.Rule, previous *resource.RouteGroup) []*resource.Rule {
	if len(before) == 0 {
		return others
	}
	type place struct {
		object string
		rank   [5]int
	}
	first := map[place]int{}
	for i, rule := range previous.GetRules() {
		at := place{routeObject(rule), precedence(rule)}
		if _, known := first[at]; !known {
			first[at] = i
		}
	}
	goesFirst := func(old, other *resource.Rule) bool {
		if order := slices.Compare(rankOf(old), rankOf(other)); order != 0 {
			return order > 0
		}
		at, known := first[place{routeObject(other), precedence(other)}]
		return known && first[place{routeObject(old), precedence(old)}] < at
	}
	merged := make([]*resource.Rule, 0, len(others)+len(before))
	for _, other := range others {
		for len(before) > 0 && goesFirst(before[0], other) {
			merged, before = append(merged, before[0]), before[1:]
		}
		merged = append(merged, other)
	}
	return append(merged, before...)
}

func rankOf(rule *resource.Rule) []int {
	rank := precedence(rule)
	return rank[:]
}
