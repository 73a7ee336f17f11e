// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// makePorts replaces only changed groups if no listener changed.
func (b *builder) makePorts() {
	if b.old.ports != nil && !b.areListenersChanged && len(b.old.resourceErrors) == 0 {
		b.patchPorts()
		return
	}
	faults := maps.Clone(b.table.resourceErrors)
	b.ports(maps.Keys(b.table.listeners), maps.Keys(b.table.groups))
	if len(b.table.resourceErrors) == len(faults) {
		return
	}
	// Repeat in order, so that errors are deterministic.
	b.table.resourceErrors = faults
	b.ports(slices.Values(slices.SortedFunc(maps.Keys(b.table.listeners), b.previousFirst)),
		slices.Values(slices.SortedFunc(maps.Keys(b.table.groups), b.previousFirst)))
}

// previousFirst orders names so that an unchanged resource precedes a new conflicting one.
func (b *builder) previousFirst(one, other string) int {
	isNew := func(name string) int {
		before := b.old.resources[name]
		if before != nil && before == b.table.resources[name] && b.old.resourceErrors[name] == nil {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(isNew(one), isNew(other)), strings.Compare(one, other))
}

func (b *builder) ports(listeners, groups iter.Seq[string]) {
	b.table.ports = map[uint16]*port{}
	b.table.virtualHosts = make(map[string]*virtualHost, len(b.table.listeners))
	for name := range listeners {
		if err := b.addVirtualHost(name); err != nil {
			b.table.addError(name, err)
		}
	}
	for name := range groups {
		b.addGroup(name, b.table.virtualHosts)
	}
}

func (b *builder) addVirtualHost(name string) error {
	listener := b.table.listeners[name].value
	number := listener.number
	at := b.table.ports[number]
	encrypted := listener.resource.GetProtocol() != resource.Listener_HTTP
	if at == nil {
		at = &port{number: number, tls: encrypted}
	}
	if at.tls != encrypted {
		return fmt.Errorf("port %d has both TLS and plain text", number)
	}
	added := &virtualHost{Name: name, Resource: listener.resource, State: listener}
	if err := at.virtualHosts.Add(listener.resource.GetHostname(), added); err != nil {
		return fmt.Errorf("port %d: %w", number, err)
	}
	at.bytes = at.bytes || listener.tunnels()
	at.shared = at.shared || listener.resource.GetTrustedHops() > 0
	at.exposed = at.exposed || listener.resource.GetTrustedHops() == 0
	b.table.ports[number], b.table.virtualHosts[name] = at, added
	return nil
}

func (b *builder) addGroup(name string, vhosts map[string]*virtualHost) {
	group := b.table.groups[name]
	for _, at := range group.from.GetRouteGroup().GetListeners() {
		vhost := vhosts[at]
		if vhost == nil {
			b.table.addError(name, missing("listener", at))
			continue
		}
		if err := vhost.Groups.Add(group.from.GetRouteGroup().GetHostname(), group.value); err != nil {
			b.table.addError(name, fmt.Errorf("listener %s: %w", at, err))
		}
	}
}

// patchPorts copies the virtual hosts of changed groups, because requests still use the old ones.
func (b *builder) patchPorts() {
	b.table.ports, b.table.virtualHosts = b.old.ports, b.old.virtualHosts
	names := b.changedGroups()
	if len(names) == 0 {
		return
	}
	changed := map[string]*virtualHost{}
	own := func(listeners []string) {
		for _, name := range listeners {
			if before := b.old.virtualHosts[name]; before != nil && changed[name] == nil {
				changed[name] = &virtualHost{Name: name, Resource: before.Resource, State: before.State, Groups: before.Groups.Clone()}
			}
		}
	}
	for _, name := range names {
		own(b.changes[name].old.GetRouteGroup().GetListeners())
		own(b.changes[name].now.GetRouteGroup().GetListeners())
	}
	for _, name := range names {
		before := b.changes[name].old.GetRouteGroup()
		for _, at := range before.GetListeners() {
			changed[at].Groups.Remove(before.GetHostname())
		}
	}
	for _, name := range names {
		if b.changes[name].now.GetRouteGroup() != nil {
			b.addGroup(name, changed)
		}
	}
	b.replaceVirtualHosts(changed)
}

func (b *builder) changedGroups() []string {
	var names []string
	for name, each := range b.changes {
		if each.old.GetRouteGroup() != nil || each.now.GetRouteGroup() != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (b *builder) replaceVirtualHosts(changed map[string]*virtualHost) {
	b.table.virtualHosts, b.table.ports = maps.Clone(b.table.virtualHosts), maps.Clone(b.table.ports)
	copied := map[uint16]*port{}
	for name, vhost := range changed {
		b.table.virtualHosts[name] = vhost
		number := vhost.State.number
		if copied[number] == nil {
			before := b.table.ports[number]
			same := *before
			same.virtualHosts = before.virtualHosts.Clone()
			copied[number] = &same
			b.table.ports[number] = copied[number]
		}
		copied[number].virtualHosts.Replace(vhost.Resource.GetHostname(), vhost)
	}
}
