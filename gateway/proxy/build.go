// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/credentials"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// builder builds a table. It reuses values of unchanged resources from the old table, so that the cost is
// proportional to the change, except for copies of some maps.
type builder struct {
	settings *upstream.Settings
	metrics  *metrics
	now      time.Time
	secret   []byte

	old, table *table
	// changes are the resources that differ from the old table or are faulty in it, by name.
	changes map[string]change
	// areListenersChanged is set after a listener was added, removed or rebuilt.
	areListenersChanged bool
}

// addError keeps the first error of a resource.
func (t *table) addError(name string, err error) {
	if t.resourceErrors == nil {
		t.resourceErrors = map[string]error{}
	}
	if t.resourceErrors[name] == nil {
		t.resourceErrors[name] = fmt.Errorf("resource %s: %w", name, err)
	}
}

// change contains the old and new version of a resource; nil if it does not exist.
type change struct{ old, now *resource.Resource }

// build always returns a table. A faulty resource keeps its previous value, or is served in a form that
// admits no request which the resource would reject.
func (b *builder) build(update Update) *table {
	b.table = &table{version: update.Version}
	b.merge(update)
	b.makeSecrets()
	b.makeCertificates()
	b.makeAuthorities()
	b.makeUsers()
	b.makeEndpoints()
	b.makeBackends()
	b.makeListeners()
	b.makeGroups()
	b.makePorts()
	return b.table
}

// merge keeps the pointers of equal resources, so that later steps compare pointers.
func (b *builder) merge(update Update) {
	b.changes = make(map[string]change, len(update.Resources)+len(update.Removed))
	gone := update.Removed
	if update.Whole {
		brought := make(map[string]bool, len(update.Resources))
		for _, r := range update.Resources {
			brought[r.GetName()] = true
		}
		for name := range b.old.resources {
			if !brought[name] {
				gone = append(gone, name)
			}
		}
	}
	for _, name := range gone {
		if before := b.old.resources[name]; before != nil {
			b.changes[name] = change{old: before}
		}
	}
	for _, r := range update.Resources {
		name := r.GetName()
		before := b.old.resources[name]
		if before != nil && (before == r || proto.Equal(before, r)) {
			delete(b.changes, name)
			continue
		}
		b.changes[name] = change{before, r}
	}
	for name := range b.old.resourceErrors {
		// A resource that it refers to may exist now.
		_, changed := b.changes[name]
		if r := b.old.resources[name]; r != nil && !changed {
			b.changes[name] = change{r, r}
		}
	}
	b.table.resources = withChanges(b.old.resources, len(update.Resources), b.changes, func(c change) (*resource.Resource, bool) {
		return c.now, c.now != nil
	})
}

// withChanges returns a modified copy of a map, or the map itself without changes.
func withChanges[C, T any](old map[string]T, room int, changes map[string]C, becomes func(C) (T, bool)) map[string]T {
	if len(changes) == 0 {
		return old
	}
	current := maps.Clone(old)
	if len(old) == 0 {
		current = make(map[string]T, room)
	}
	for name, each := range changes {
		if value, kept := becomes(each); kept {
			current[name] = value
		} else {
			delete(current, name)
		}
	}
	return current
}

// reuse returns the old value if the resource and its parts are unchanged, or if create fails.
func reuse[T any](old map[string]built[T], r *resource.Resource, parts []any, create func() (T, error)) (built[T], error) {
	if before, ok := old[r.GetName()]; ok && before.from == r && slices.Equal(before.parts, parts) {
		return before, nil
	}
	value, err := create()
	if err != nil {
		return old[r.GetName()], err
	}
	return built[T]{from: r, parts: parts, value: value}, nil
}

func isKindChanged[K comparable](b *builder, kind func(*resource.Resource) K) bool {
	var none K
	for _, each := range b.changes {
		if kind(each.old) != none || kind(each.now) != none {
			return true
		}
	}
	return false
}

// rebuildEach rebuilds changed resources of a kind, or all if their dependencies changed. create returns
// an error and the value to serve nevertheless, if there is one.
func rebuildEach[K comparable, T any](
	b *builder, all bool, old map[string]built[T], kind func(*resource.Resource) K,
	create func(*resource.Resource) (built[T], error),
) map[string]built[T] {
	var none K
	results := map[string]*built[T]{}
	rebuild := func(name string, r *resource.Resource) {
		value, err := create(r)
		if err != nil {
			b.table.addError(name, err)
		}
		if value.from != nil {
			results[name] = &value
		}
	}
	for name, each := range b.changes {
		if kind(each.old) != none {
			results[name] = nil
		}
		if kind(each.now) != none {
			rebuild(name, each.now)
		}
	}
	if all {
		for name, before := range old {
			if _, done := results[name]; !done {
				rebuild(name, before.from)
			}
		}
	}
	return withChanges(old, len(results), results, func(value *built[T]) (built[T], bool) {
		if value == nil {
			return built[T]{}, false
		}
		return *value, true
	})
}

func (b *builder) makeCertificates() {
	b.table.certificates = rebuildEach(b, false, b.old.certificates, (*resource.Resource).GetCertificate,
		func(r *resource.Resource) (built[*certificate], error) {
			return reuse(b.old.certificates, r, nil, func() (*certificate, error) { return newCertificate(r.GetCertificate()) })
		})
}

func (b *builder) makeAuthorities() {
	b.table.authorities = rebuildEach(b, false, b.old.authorities, (*resource.Resource).GetCertificateAuthority,
		func(r *resource.Resource) (built[*upstream.Authority], error) {
			return reuse(b.old.authorities, r, nil, func() (*upstream.Authority, error) {
				return upstream.NewAuthority(r.GetCertificateAuthority().GetCertificates())
			})
		})
}

func (b *builder) makeUsers() {
	b.table.users = rebuildEach(b, false, b.old.users, (*resource.Resource).GetUsers,
		func(r *resource.Resource) (built[*credentials.Users], error) {
			// Previous users may have been removed, so valid lines are used.
			users, err := credentials.Parse(r.GetUsers().GetHtpasswd())
			return built[*credentials.Users]{from: r, value: users}, err
		})
}

func (b *builder) makeEndpoints() {
	b.table.endpoints = rebuildEach(b, false, b.old.endpoints, (*resource.Resource).GetEndpoints,
		func(r *resource.Resource) (built[*balance.Set], error) {
			// Previous addresses may belong to other pods, so valid ones are used.
			read, err := plan.Addresses(r.GetEndpoints())
			addresses := make([]balance.Address, 0, len(read))
			for _, address := range read {
				addresses = append(addresses, balance.Address(address))
			}
			set := balance.NewSet(&b.settings.Balance, addresses, b.old.endpoints[r.GetName()].value, b.now)
			return built[*balance.Set]{from: r, value: set}, err
		})
}

func (b *builder) makeBackends() {
	if !isKindChanged(b, (*resource.Resource).GetBackend) && !isKindChanged(b, (*resource.Resource).GetEndpoints) && !b.isTLSChanged() {
		b.table.backends, b.table.transports = b.old.backends, b.old.transports
		return
	}
	// Rebuild all, because each backend keeps its transport in the new table.
	b.table.transports = upstream.Transports{}
	b.table.backends = rebuildEach(b, true, b.old.backends, (*resource.Resource).GetBackend, b.makeBackend)
}

// isTLSChanged reports changes of certificates and authorities, which listeners and backends depend on.
func (b *builder) isTLSChanged() bool {
	return isKindChanged(b, (*resource.Resource).GetCertificate) || isKindChanged(b, (*resource.Resource).GetCertificateAuthority)
}

// makeBackend falls back to the previous version with its current endpoints, or to a backend that answers
// 500.
func (b *builder) makeBackend(r *resource.Resource) (built[*upstream.Backend], error) {
	made, err := b.newBackend(r)
	if err == nil {
		return made, nil
	}
	if before, ok := b.old.backends[r.GetName()]; ok {
		if made, failed := b.newBackend(before.from); failed == nil {
			return made, err
		}
	}
	made, _ = b.newBackend(&resource.Resource{Name: r.GetName(), Kind: &resource.Resource_Backend{
		Backend: &resource.Backend{Protocol: r.GetBackend().GetProtocol(), Refuse: true},
	}})
	return made, err
}

func (b *builder) newBackend(r *resource.Resource) (built[*upstream.Backend], error) {
	var none built[*upstream.Backend]
	backend := r.GetBackend()
	endpoints, ok := b.table.endpoints[backend.GetEndpoints()]
	if !ok && !backend.GetRefuse() {
		return none, missing("endpoints", backend.GetEndpoints())
	}
	parts := []any{endpoints.value}
	var with *upstream.TLS
	if backend.GetTls() != nil && !backend.GetRefuse() {
		with = &upstream.TLS{Resource: backend.GetTls()}
		for _, name := range backend.GetTls().GetCertificateAuthorities() {
			authority, ok := b.table.authorities[name]
			if !ok {
				return none, missing("certificate authority", name)
			}
			with.Authorities = append(with.Authorities, authority.value)
			parts = append(parts, authority.value)
		}
		if name := backend.GetTls().GetClientCertificate(); name != "" {
			certificate, ok := b.table.certificates[name]
			if !ok {
				return none, missing("certificate", name)
			}
			with.Certificate = &certificate.value.pair
			parts = append(parts, certificate.value)
		}
	}
	kept, err := reuse(b.old.backends, r, parts, func() (*upstream.Backend, error) {
		if !ok {
			// Sessions and tunnels access the endpoints of any backend.
			endpoints.value = balance.NewSet(&b.settings.Balance, nil, nil, b.now)
		}
		return upstream.New(r.GetName(), backend, b.settings, upstream.Connection{
			Set: endpoints.value, TLS: with, Old: b.old.transports, Current: b.table.transports,
		}), nil
	})
	if err == nil {
		kept.value.Keep(b.table.transports)
	}
	return kept, err
}

func missing(kind, name string) error {
	return fmt.Errorf("%s %q is not in the configuration", kind, name)
}
