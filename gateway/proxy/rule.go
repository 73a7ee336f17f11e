// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
)

type rule struct {
	route string
	// prefix is the matched prefix, which a rewrite replaces.
	prefix  string
	filters filters
	// backends are cumulative: the first share with an end above the random number is selected.
	backends []weightedBackend
	total    uint64
	timeout  time.Duration
	policy   upstream.Policy
	session  *session
}

type weightedBackend struct {
	end     uint64
	backend string
	id      backendID
	filters filters
}

func (b *builder) makeGroups() {
	// A group may refer to a removed backend or removed users.
	all := false
	for _, each := range b.changes {
		all = all || each.old.GetBackend() != nil && each.now.GetBackend() == nil ||
			each.old.GetUsers() != nil && each.now.GetUsers() == nil
	}
	b.table.groups = rebuildEach(b, all, b.old.groups, (*resource.Resource).GetRouteGroup,
		func(r *resource.Resource) (built[*group], error) {
			before, ok := b.old.groups[r.GetName()]
			if ok && before.from == r && b.old.resourceErrors[r.GetName()] == nil && !slices.ContainsFunc(before.value.Rules, b.hasMissing) {
				return before, nil
			}
			if _, changed := b.changes[r.GetName()]; !changed {
				b.changes[r.GetName()] = change{r, r}
			}
			value, err := b.newGroup(r.GetRouteGroup())
			return built[*group]{from: r, value: value}, err
		})
}

// newGroup returns a group even with invalid rules, because rules of other objects may be in it: an
// invalid rule answers 500. It is omitted if its match is invalid.
func (b *builder) newGroup(r *resource.RouteGroup) (*group, error) {
	g := &group{Rules: make([]*rule, 0, len(r.GetRules()))}
	matches := make([]*resource.Match, 0, len(r.GetRules()))
	var fault error
	for i, from := range r.GetRules() {
		matches = append(matches, from.GetMatch())
		made, err := newRule(from)
		if err == nil {
			err = b.findMissing(made)
		}
		if err != nil {
			fault = cmp.Or(fault, fmt.Errorf("rule %d (%s): %w", i, from.GetRoute(), err))
			made, _ = newRule(&resource.Rule{Route: from.GetRoute()})
		}
		g.Rules = append(g.Rules, made)
	}
	var err error
	g.Matcher, err = match.Compile(matches)
	return g, cmp.Or(fault, err)
}

func (b *builder) hasMissing(r *rule) bool { return b.findMissing(r) != nil }

// findMissing returns an error if a rule refers to a resource that does not exist.
func (b *builder) findMissing(r *rule) error {
	for _, name := range r.names() {
		if _, ok := b.table.backends[name]; !ok {
			return missing("backend", name)
		}
	}
	if password := r.filters.guards.password; password != nil {
		if _, ok := b.table.users[password.GetUsers()]; !ok {
			return missing("users", password.GetUsers())
		}
	}
	return nil
}

func newRule(from *resource.Rule) (*rule, error) {
	r := &rule{
		route:   from.GetRoute(),
		prefix:  plan.Prefix(from),
		timeout: time.Duration(from.GetTimeouts().GetRequest()) * time.Millisecond,
		session: newSession(from.GetSessionPersistence()),
		policy: upstream.Policy{
			Attempts: int(from.GetRetry().GetAttempts()),
			Statuses: from.GetRetry().GetStatuses(),
			Backoff:  time.Duration(from.GetRetry().GetBackoff()) * time.Millisecond,
			Timeout:  time.Duration(from.GetTimeouts().GetBackendRequest()) * time.Millisecond,
		},
	}
	var err error
	if r.filters, err = newFilters(from.GetRoute(), from.GetFilters()); err != nil {
		return nil, err
	}
	for _, backend := range from.GetBackends() {
		if backend.GetWeight() == 0 {
			continue
		}
		r.total += uint64(backend.GetWeight())
		filters, err := newFilters(from.GetRoute(), backend.GetFilters())
		if err == nil && filters.guards.any() {
			err = errors.New("access filters are valid for a rule only, not for a backend")
		}
		if err == nil && filters.expression != nil {
			err = errors.New("rewrites by expression are valid for a rule only, not for a backend")
		}
		if err != nil {
			return nil, fmt.Errorf("backend %q: %w", backend.GetBackend(), err)
		}
		r.backends = append(r.backends, weightedBackend{
			end: r.total, backend: backend.GetBackend(), id: newBackendID(backend.GetBackend()), filters: filters,
		})
	}
	return r, nil
}

// names returns the backends of a rule.
func (r *rule) names() []string {
	var names []string
	collect := func(f *filters) {
		for _, mirror := range f.mirrors {
			names = append(names, mirror.GetBackend())
		}
	}
	collect(&r.filters)
	if authorization := r.filters.guards.authorization; authorization != nil {
		names = append(names, authorization.Backend)
	}
	for i := range r.backends {
		collect(&r.backends[i].filters)
		if name := r.backends[i].backend; name != "" {
			names = append(names, name)
		}
	}
	return names
}

// pick returns nil without backends.
func (r *rule) pick() *weightedBackend {
	switch len(r.backends) {
	case 0:
		return nil
	case 1:
		return &r.backends[0]
	}
	at := rand.Uint64N(r.total)
	for i := range r.backends {
		if at < r.backends[i].end {
			return &r.backends[i]
		}
	}
	return nil
}
