// SPDX-License-Identifier: Apache-2.0

package proxy

import (
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
	from  *resource.Rule
	route string
	// prefix is the matched prefix, which a rewrite replaces.
	prefix  string
	filters filters
	// shares are cumulative: the first share with an end above the random number is selected.
	shares  []share
	total   uint64
	timeout time.Duration
	policy  upstream.Policy
	session *session
}

type share struct {
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
	b.table.groups = each(b, all, b.old.groups, (*resource.Resource).GetRouteGroup,
		func(r *resource.Resource) (built[*group], error) {
			kept, err := reuse(b.old.groups, r, nil, func() (*group, error) { return newGroup(r.GetRouteGroup()) })
			if err != nil {
				return kept, err
			}
			for _, name := range kept.value.backends {
				if _, ok := b.table.backends[name]; !ok {
					return kept, missing(r, "backend", name)
				}
			}
			for _, name := range kept.value.users {
				if _, ok := b.table.users[name]; !ok {
					return kept, missing(r, "users", name)
				}
			}
			return kept, nil
		})
}

func newGroup(r *resource.RouteGroup) (*group, error) {
	g := &group{}
	matches := make([]*resource.Match, 0, len(r.GetRules()))
	used := map[string]bool{}
	for i, from := range r.GetRules() {
		matches = append(matches, from.GetMatch())
		made, err := newRule(from)
		if err != nil {
			return nil, fmt.Errorf("rule %d (%s): %w", i, from.GetRoute(), err)
		}
		g.rules = append(g.rules, made)
		for _, name := range made.names() {
			if !used[name] {
				used[name] = true
				g.backends = append(g.backends, name)
			}
		}
		if password := made.filters.guards.password; password != nil && !slices.Contains(g.users, password.GetUsers()) {
			g.users = append(g.users, password.GetUsers())
		}
	}
	var err error
	g.matcher, err = match.Compile(matches)
	return g, err
}

func newRule(from *resource.Rule) (*rule, error) {
	r := &rule{
		from:    from,
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
		r.shares = append(r.shares, share{
			end: r.total, backend: backend.GetBackend(), id: newBackendID(backend.GetBackend()), filters: filters,
		})
	}
	return r, nil
}

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
	for i := range r.shares {
		collect(&r.shares[i].filters)
		if name := r.shares[i].backend; name != "" {
			names = append(names, name)
		}
	}
	return names
}

// draw returns nil without backends.
func (r *rule) draw() *share {
	switch len(r.shares) {
	case 0:
		return nil
	case 1:
		return &r.shares[0]
	}
	at := rand.Uint64N(r.total)
	for i := range r.shares {
		if at < r.shares[i].end {
			return &r.shares[i]
		}
	}
	return nil
}
