// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"
)

// sharing identifies Services that may share addresses; namespace is empty for pools shared by all.
type sharing struct {
	namespace, key string
	family         Family
}

// sharers are the sorted addresses that have a claim with the sharing key.
type sharers struct {
	addresses []netip.Addr
	// ports counts the addresses that list each port.
	ports map[Port]int
}

func (s *sharers) within(from, to netip.Addr) []netip.Addr {
	first, _ := slices.BinarySearchFunc(s.addresses, from, netip.Addr.Compare)
	end, found := slices.BinarySearchFunc(s.addresses, to, netip.Addr.Compare)
	if found {
		end++
	}
	return s.addresses[first:end]
}

func (s *sharers) haveAny(ports []Port) bool {
	return slices.ContainsFunc(ports, func(port Port) bool { return s.ports[port] == len(s.addresses) })
}

func (t *Table) share(vip VIP, add bool) {
	listed := map[Port]bool{}
	groups := map[sharing]bool{}
	for _, claim := range vip.Claims {
		for _, port := range claim.Ports {
			listed[port] = true
		}
		if claim.SharingKey != "" {
			family := FamilyOf(vip.Address)
			groups[sharing{"", claim.SharingKey, family}] = true
			groups[sharing{claim.Namespace, claim.SharingKey, family}] = true
		}
	}
	for group := range groups {
		s := t.keyed[group]
		if s == nil {
			s = &sharers{ports: map[Port]int{}}
			t.keyed[group] = s
		}
		at, _ := slices.BinarySearchFunc(s.addresses, vip.Address, netip.Addr.Compare)
		if add {
			s.addresses = slices.Insert(s.addresses, at, vip.Address)
			s.list(listed, 1)
			continue
		}
		if s.addresses = slices.Delete(s.addresses, at, at+1); len(s.addresses) == 0 {
			delete(t.keyed, group)
			continue
		}
		s.list(listed, -1)
	}
}

func (s *sharers) list(ports map[Port]bool, times int) {
	for port := range ports {
		if s.ports[port] += times; s.ports[port] == 0 {
			delete(s.ports, port)
		}
	}
}

// shared returns the lowest fitting address of the Service's sharing key, also of other namespaces if the
// pool is shared by all. Ranges whose addresses all list a port of without are skipped together.
func (p *planner) shared(family Family, without []Port, fits func(address netip.Addr, pool Pool) bool) (lowest netip.Addr, of Pool) {
	own := p.table.keyed[sharing{p.request.Owner.Namespace, p.request.SharingKey, family}]
	all := p.table.keyed[sharing{"", p.request.SharingKey, family}]
	if all == nil {
		return lowest, of
	}
	for _, pool := range p.pools {
		sharers := own
		if pool.SharedByAll {
			sharers = all
		}
		if sharers == nil || !p.isEligible(pool) || sharers.haveAny(without) {
			continue
		}
		if address := pool.first(family, sharers, fits); address.IsValid() && (!lowest.IsValid() || address.Less(lowest)) {
			lowest, of = address, pool
		}
	}
	return lowest, of
}

func (p Pool) first(family Family, sharers *sharers, fits func(address netip.Addr, pool Pool) bool) netip.Addr {
	for _, r := range p.Addresses.ranges {
		if FamilyOf(r.From()) != family {
			continue
		}
		for _, address := range sharers.within(r.From(), r.To()) {
			if fits(address, p) {
				return address
			}
		}
	}
	return netip.Addr{}
}
