// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// builder makes a table. What the one before has of the same resources is taken over.
type builder struct {
	settings *upstream.Settings
	metrics  *metrics
	now      time.Time
	// secret takes the place of a shared one that is not there.
	secret []byte

	old, table *table
}

// build gives the table after an update, or says what is wrong with the update.
func (b *builder) build(update Update) (*table, error) {
	b.table = &table{version: update.Version, transports: upstream.Transports{}}
	var err error
	if b.table.resources, err = merge(b.old.resources, update); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", update.Version, err)
	}
	for _, step := range []func() error{
		b.makeSecrets, b.makeCertificates, b.makeAuthorities, b.makeEndpoints, b.makeBackends,
		b.makeListeners, b.makeGroups, b.makePorts,
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("configuration %s: %w", update.Version, err)
		}
	}
	return b.table, nil
}

// merge gives the resources after an update. One that says the same as before stays the
// same object, so later steps compare pointers.
func merge(old map[string]*resource.Resource, update Update) (map[string]*resource.Resource, error) {
	current := make(map[string]*resource.Resource, max(len(old), len(update.Resources)))
	if !update.Whole {
		maps.Copy(current, old)
	}
	brought := make(map[string]bool, len(update.Resources))
	for _, name := range update.Removed {
		delete(current, name)
	}
	for _, r := range update.Resources {
		if brought[r.GetName()] {
			return nil, fmt.Errorf("there are two resources with the name %s", r.GetName())
		}
		brought[r.GetName()] = true
		if before := old[r.GetName()]; before != nil && (before == r || proto.Equal(before, r)) {
			r = before
		}
		current[r.GetName()] = r
	}
	return current, nil
}

// keep gives what the old table made of a resource and its parts, or makes it.
func keep[T any](old map[string]made[T], r *resource.Resource, parts []any, create func() (T, error)) (made[T], error) {
	if before, ok := old[r.GetName()]; ok && before.from == r && slices.Equal(before.parts, parts) {
		return before, nil
	}
	value, err := create()
	if err != nil {
		return made[T]{}, fmt.Errorf("resource %s: %w", r.GetName(), err)
	}
	return made[T]{from: r, parts: parts, value: value}, nil
}

// each makes something of all resources of a kind.
func each[K comparable, T any](
	b *builder, old map[string]made[T], kind func(*resource.Resource) K, create func(*resource.Resource) (made[T], error),
) (map[string]made[T], error) {
	var none K
	current := make(map[string]made[T], len(old))
	for name, r := range b.table.resources {
		if kind(r) == none {
			continue
		}
		value, err := create(r)
		if err != nil {
			return nil, err
		}
		current[name] = value
	}
	return current, nil
}

func (b *builder) makeSecrets() error {
	for name, r := range b.table.resources {
		secret := r.GetSharedSecret()
		if secret == nil {
			continue
		}
		if b.table.secrets != nil {
			return fmt.Errorf("resource %s: there are two shared secrets", name)
		}
		for _, value := range secret.GetValues() {
			if len(value) < 32 {
				return fmt.Errorf("resource %s: a secret of %d bytes is too short", name, len(value))
			}
			b.table.secrets = append(b.table.secrets, value)
		}
	}
	if len(b.table.secrets) == 0 {
		b.table.secrets = [][]byte{b.secret}
	}
	if slices.EqualFunc(b.table.secrets, b.old.secrets, bytes.Equal) {
		// The same ones, so that listeners see by the pointer that nothing changed.
		b.table.secrets = b.old.secrets
	}
	return nil
}

func (b *builder) makeCertificates() (err error) {
	b.table.certificates, err = each(b, b.old.certificates, (*resource.Resource).GetCertificate,
		func(r *resource.Resource) (made[*certificate], error) {
			return keep(b.old.certificates, r, nil, func() (*certificate, error) { return newCertificate(r.GetCertificate()) })
		})
	return err
}

func (b *builder) makeAuthorities() (err error) {
	b.table.authorities, err = each(b, b.old.authorities, (*resource.Resource).GetCertificateAuthority,
		func(r *resource.Resource) (made[*upstream.Authority], error) {
			return keep(b.old.authorities, r, nil, func() (*upstream.Authority, error) {
				return upstream.NewAuthority(r.GetCertificateAuthority().GetCertificates())
			})
		})
	return err
}

func (b *builder) makeEndpoints() (err error) {
	b.table.endpoints, err = each(b, b.old.endpoints, (*resource.Resource).GetEndpoints,
		func(r *resource.Resource) (made[*balance.Set], error) {
			return keep(b.old.endpoints, r, nil, func() (*balance.Set, error) {
				addresses, err := parseEndpoints(r.GetEndpoints())
				if err != nil {
					return nil, err
				}
				return balance.NewSet(&b.settings.Balance, addresses, b.old.endpoints[r.GetName()].value, b.now), nil
			})
		})
	return err
}

func parseEndpoints(endpoints *resource.Endpoints) ([]balance.Address, error) {
	addresses := make([]balance.Address, 0, len(endpoints.GetEndpoints()))
	for _, endpoint := range endpoints.GetEndpoints() {
		address, err := netip.ParseAddr(endpoint.GetAddress())
		if err != nil {
			return nil, err
		}
		number, err := portNumber(endpoint.GetPort())
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, balance.Address{
			AddrPort: netip.AddrPortFrom(address.Unmap(), number),
			Draining: endpoint.GetDraining(),
		})
	}
	return addresses, nil
}

func portNumber(number uint32) (uint16, error) {
	if number == 0 || number > 65535 {
		return 0, fmt.Errorf("%d is no port", number)
	}
	return uint16(number), nil
}

func (b *builder) makeBackends() (err error) {
	b.table.backends, err = each(b, b.old.backends, (*resource.Resource).GetBackend, b.makeBackend)
	return err
}

func (b *builder) makeBackend(r *resource.Resource) (made[*upstream.Backend], error) {
	var none made[*upstream.Backend]
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
	kept, err := keep(b.old.backends, r, parts, func() (*upstream.Backend, error) {
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

func (b *builder) makePorts() error {
	if b.ports(maps.Keys(b.table.listeners), maps.Keys(b.table.groups)) == nil {
		return nil
	}
	// In order, so that an error is the same each time.
	return b.ports(slices.Values(slices.Sorted(maps.Keys(b.table.listeners))),
		slices.Values(slices.Sorted(maps.Keys(b.table.groups))))
}

func (b *builder) ports(listeners, groups iter.Seq[string]) error {
	b.table.ports = map[uint16]*port{}
	sites := make(map[string]*site, len(b.table.listeners))
	for name := range listeners {
		listener := b.table.listeners[name].value
		number, err := portNumber(listener.resource.GetTargetPort())
		if err != nil {
			return fmt.Errorf("resource %s: %w", name, err)
		}
		at := b.table.ports[number]
		encrypted := listener.resource.GetProtocol() != resource.Listener_HTTP
		if at == nil {
			at = &port{number: number, tls: encrypted}
			b.table.ports[number] = at
		}
		if at.tls != encrypted {
			return fmt.Errorf("resource %s: port %d has both TLS and plain text", name, number)
		}
		at.bytes = at.bytes || listener.tunnels()
		sites[name] = &site{listener: listener}
		if err := at.sites.Add(listener.resource.GetHostname(), sites[name]); err != nil {
			return fmt.Errorf("resource %s: port %d: %w", name, number, err)
		}
	}
	for name := range groups {
		group := b.table.groups[name]
		for _, at := range group.from.GetRouteGroup().GetListeners() {
			site := sites[at]
			if site == nil {
				return missing(group.from, "listener", at)
			}
			if err := site.groups.Add(group.from.GetRouteGroup().GetHostname(), group.value); err != nil {
				return fmt.Errorf("resource %s: listener %s: %w", name, at, err)
			}
		}
	}
	return nil
}
