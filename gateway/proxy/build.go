// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
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
	// changes are the resources that differ from the old table, by name.
	changes map[string]change
	// relisted is set after a listener was added, removed or rebuilt.
	relisted bool
	faults   faults
}

// faults are errors of resources by name, reported together for a build step.
type faults map[string]error

// Error joins the errors in the order of names.
func (f faults) Error() string {
	texts := make([]string, 0, len(f))
	for _, name := range slices.Sorted(maps.Keys(f)) {
		texts = append(texts, f[name].Error())
	}
	return strings.Join(texts, "; ")
}

// fault keeps the first error of a resource.
func (b *builder) fault(name string, err error) {
	if b.faults[name] == nil {
		b.faults[name] = err
	}
}

// change contains the old and new version of a resource; nil if it does not exist.
type change struct{ old, now *resource.Resource }

func (b *builder) build(update Update) (*table, error) {
	b.table, b.faults = &table{version: update.Version}, faults{}
	b.merge(update)
	for _, step := range []func(){
		b.makeSecrets, b.makeCertificates, b.makeAuthorities, b.makeUsers, b.makeEndpoints, b.makeBackends,
		b.makeListeners, b.makeGroups, b.makePorts,
	} {
		step()
		// Stop here: errors of resources that refer to a faulty one would be misleading.
		if len(b.faults) > 0 {
			return nil, b.faults
		}
	}
	return b.table, nil
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
	b.table.resources = patched(b.old.resources, len(update.Resources), b.changes, func(c change) (*resource.Resource, bool) {
		return c.now, c.now != nil
	})
}

// patched returns a modified copy of a map, or the map itself without changes.
func patched[C, T any](old map[string]T, room int, changes map[string]C, becomes func(C) (T, bool)) map[string]T {
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

// reuse returns the old value if the resource and its parts are unchanged.
func reuse[T any](old map[string]built[T], r *resource.Resource, parts []any, create func() (T, error)) (built[T], error) {
	if before, ok := old[r.GetName()]; ok && before.from == r && slices.Equal(before.parts, parts) {
		return before, nil
	}
	value, err := create()
	if err != nil {
		return built[T]{}, fmt.Errorf("resource %s: %w", r.GetName(), err)
	}
	return built[T]{from: r, parts: parts, value: value}, nil
}

func touched[K comparable](b *builder, kind func(*resource.Resource) K) bool {
	var none K
	for _, each := range b.changes {
		if kind(each.old) != none || kind(each.now) != none {
			return true
		}
	}
	return false
}

// each rebuilds changed resources of a kind, or all if their dependencies changed, and records errors as
// faults.
func each[K comparable, T any](
	b *builder, all bool, old map[string]built[T], kind func(*resource.Resource) K,
	create func(*resource.Resource) (built[T], error),
) map[string]built[T] {
	var none K
	results := map[string]*built[T]{}
	rebuild := func(name string, r *resource.Resource) {
		value, err := create(r)
		if err != nil {
			b.fault(name, err)
			return
		}
		results[name] = &value
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
			if _, done := results[name]; !done && b.faults[name] == nil {
				rebuild(name, before.from)
			}
		}
	}
	return patched(old, len(results), results, func(value *built[T]) (built[T], bool) {
		if value == nil {
			return built[T]{}, false
		}
		return *value, true
	})
}

func (b *builder) makeCertificates() {
	b.table.certificates = each(b, false, b.old.certificates, (*resource.Resource).GetCertificate,
		func(r *resource.Resource) (built[*certificate], error) {
			return reuse(b.old.certificates, r, nil, func() (*certificate, error) { return newCertificate(r.GetCertificate()) })
		})
}

func (b *builder) makeAuthorities() {
	b.table.authorities = each(b, false, b.old.authorities, (*resource.Resource).GetCertificateAuthority,
		func(r *resource.Resource) (built[*upstream.Authority], error) {
			return reuse(b.old.authorities, r, nil, func() (*upstream.Authority, error) {
				return upstream.NewAuthority(r.GetCertificateAuthority().GetCertificates())
			})
		})
}

func (b *builder) makeUsers() {
	b.table.users = each(b, false, b.old.users, (*resource.Resource).GetUsers,
		func(r *resource.Resource) (built[*credentials.Users], error) {
			return reuse(b.old.users, r, nil, func() (*credentials.Users, error) {
				return credentials.Parse(r.GetUsers().GetHtpasswd())
			})
		})
}

func (b *builder) makeEndpoints() {
	b.table.endpoints = each(b, false, b.old.endpoints, (*resource.Resource).GetEndpoints,
		func(r *resource.Resource) (built[*balance.Set], error) {
			return reuse(b.old.endpoints, r, nil, func() (*balance.Set, error) {
				read, err := plan.Addresses(r.GetEndpoints())
				if err != nil {
					return nil, err
				}
				addresses := make([]balance.Address, 0, len(read))
				for _, address := range read {
					addresses = append(addresses, balance.Address(address))
				}
				return balance.NewSet(&b.settings.Balance, addresses, b.old.endpoints[r.GetName()].value, b.now), nil
			})
		})
}

func (b *builder) makeBackends() {
	if !touched(b, (*resource.Resource).GetBackend) && !touched(b, (*resource.Resource).GetEndpoints) && !b.touchedTLS() {
		b.table.backends, b.table.transports = b.old.backends, b.old.transports
		return
	}
	// Rebuild all, because each backend keeps its transport in the new table.
	b.table.transports = upstream.Transports{}
	b.table.backends = each(b, true, b.old.backends, (*resource.Resource).GetBackend, b.makeBackend)
}

// touchedTLS reports changes of certificates and authorities, which listeners and backends depend on.
func (b *builder) touchedTLS() bool {
	return touched(b, (*resource.Resource).GetCertificate) || touched(b, (*resource.Resource).GetCertificateAuthority)
}

func (b *builder) makeBackend(r *resource.Resource) (built[*upstream.Backend], error) {
	var none built[*upstream.Backend]
	backend := r.GetBackend()
	endpoints, ok := b.table.endpoints[backend.GetEndpoints()]
	if !ok && !backend.GetRefuse() {
		return none, missing(r, "endpoints", backend.GetEndpoints())
	}
	parts := []any{endpoints.value}
	var with *upstream.TLS
	if backend.GetTls() != nil && !backend.GetRefuse() {
		with = &upstream.TLS{Resource: backend.GetTls()}
		for _, name := range backend.GetTls().GetCertificateAuthorities() {
			authority, ok := b.table.authorities[name]
			if !ok {
				return none, missing(r, "certificate authority", name)
			}
			with.Authorities = append(with.Authorities, authority.value)
			parts = append(parts, authority.value)
		}
		if name := backend.GetTls().GetClientCertificate(); name != "" {
			certificate, ok := b.table.certificates[name]
			if !ok {
				return none, missing(r, "certificate", name)
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

func missing(r *resource.Resource, kind, name string) error {
	return fmt.Errorf("resource %s: %s %q is not in the configuration", r.GetName(), kind, name)
}
