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
	if b.old.ports != nil && !b.relisted && len(b.old.faults) == 0 {
		b.patchPorts()
		return
	}
	faults := maps.Clone(b.table.faults)
	b.ports(maps.Keys(b.table.listeners), maps.Keys(b.table.groups))
	if len(b.table.faults) == len(faults) {
		return
	}
	// Repeat in order, so that faults are deterministic.
	b.table.faults = faults
	b.ports(slices.Values(slices.SortedFunc(maps.Keys(b.table.listeners), b.previousFirst)),
		slices.Values(slices.SortedFunc(maps.Keys(b.table.groups), b.previousFirst)))
}

// previousFirst orders names so that an unchanged resource precedes a new conflicting one.
func (b *builder) previousFirst(one, other string) int {
	isNew := func(name string) int {
		before := b.old.resources[name]
		if before != nil && before == b.table.resources[name] && b.old.faults[name] == nil {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(isNew(one), isNew(other)), strings.Compare(one, other))
}

func (b *builder) ports(listeners, groups iter.Seq[string]) {
	b.table.ports = map[uint16]*port{}
	b.table.sites = make(map[string]*site, len(b.table.listeners))
	for name := range listeners {
		if err := b.addSite(name); err != nil {
			b.table.fault(name, err)
		}
	}
	for name := range groups {
		b.addGroup(name, b.table.sites)
	}
}

func (b *builder) addSite(name string) error {
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
	added := &site{Name: name, Resource: listener.resource, State: listener}
	if err := at.sites.Add(listener.resource.GetHostname(), added); err != nil {
		return fmt.Errorf("port %d: %w", number, err)
	}
	at.bytes = at.bytes || listener.tunnels()
	at.shared = at.shared || listener.resource.GetTrustedHops() > 0
	at.exposed = at.exposed || listener.resource.GetTrustedHops() == 0
	b.table.ports[number], b.table.sites[name] = at, added
	return nil
}

func (b *builder) addGroup(name string, sites map[string]*site) {
	group := b.table.groups[name]
	for _, at := range group.from.GetRouteGroup().GetListeners() {
		site := sites[at]
		if site == nil {
			b.table.fault(name, missing("listener", at))
			continue
		}
		if err := site.Groups.Add(group.from.GetRouteGroup().GetHostname(), group.value); err != nil {
			b.table.fault(name, fmt.Errorf("listener %s: %w", at, err))
		}
	}
}

// patchPorts copies the sites of changed groups, because requests still use the old ones.
func (b *builder) patchPorts() {
	b.table.ports, b.table.sites = b.old.ports, b.old.sites
	names := b.changedGroups()
	if len(names) == 0 {
		return
	}
	changed := map[string]*site{}
	own := func(listeners []string) {
		for _, name := range listeners {
			if before := b.old.sites[name]; before != nil && changed[name] == nil {
				changed[name] = &site{Name: name, Resource: before.Resource, State: before.State, Groups: before.Groups.Clone()}
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
	b.replaceSites(changed)
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

func (b *builder) replaceSites(changed map[string]*site) {
	b.table.sites, b.table.ports = maps.Clone(b.table.sites), maps.Clone(b.table.ports)
	copied := map[uint16]*port{}
	for name, site := range changed {
		b.table.sites[name] = site
		number := site.State.number
		if copied[number] == nil {
			before := b.table.ports[number]
			same := *before
			same.sites = before.sites.Clone()
			copied[number] = &same
			b.table.ports[number] = copied[number]
		}
		copied[number].sites.Replace(site.Resource.GetHostname(), site)
	}
}
