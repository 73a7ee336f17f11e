// SPDX-License-Identifier: Apache-2.0

// Package ipam plans the assignment of addresses to Services from pools, existing VIPs and a request. It is
// pure.
package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// An Owner is a Service. An empty UID is a reservation for any Service of the name.
type Owner struct {
	Namespace, Name, UID string
}

// String returns "namespace/name".
func (o Owner) String() string {
	return o.Namespace + "/" + o.Name
}

func (o Owner) sameName(other Owner) bool {
	return o.Namespace == other.Namespace && o.Name == other.Name
}

// A Port is a port of a VIP. Protocol is as in Service.spec.ports, never empty.
type Port struct {
	Number   uint16
	Protocol string
}

// String returns "53/UDP".
func (p Port) String() string {
	return fmt.Sprintf("%d/%s", p.Number, p.Protocol)
}

// Compare orders ports by number, then protocol.
func (p Port) Compare(other Port) int {
	return cmp.Or(cmp.Compare(p.Number, other.Number), cmp.Compare(p.Protocol, other.Protocol))
}

// A Claim is an owner's right to a VIP.
type Claim struct {
	Owner
	// SharingKey lets Services with the same key share the VIP; empty: no sharing.
	SharingKey string
	// Ports are exclusive to the owner, sorted. The only owner of a VIP without a sharing key needs no ports.
	Ports []Port
	// Releasing is true while the owner is releasing the VIP. It can still keep it.
	Releasing bool
}

func (c Claim) equal(other Claim) bool {
	return c.Owner == other.Owner && c.SharingKey == other.SharingKey && slices.Equal(c.Ports, other.Ports) &&
		c.Releasing == other.Releasing
}

// A VIP is an address with a VIP object, which is therefore not free. Without claims it is reserved.
type VIP struct {
	Address netip.Addr
	// Pool that the address was taken from; empty for manually created VIPs.
	Pool string
	// CreatedAt is the creation time, in whole seconds.
	CreatedAt time.Time
	// Claims in order of creation.
	Claims []Claim
}

// claimOf returns the index of an owner's claim, or -1.
func (v VIP) claimOf(owner Owner) int {
	return slices.IndexFunc(v.Claims, func(c Claim) bool {
		return c.sameName(owner) && (c.UID == "" || c.UID == owner.UID)
	})
}

func (v VIP) heldBy(owner Owner) bool {
	return v.claimOf(owner) >= 0
}

type ownerName struct {
	namespace, name string
}

type addressSet map[netip.Addr]struct{}

// A Table holds the existing VIPs. It is not safe for concurrent use.
type Table struct {
	vips map[netip.Addr]VIP
	held map[ownerName]addressSet
	// usage counts the addresses of a pool that a namespace has; unpooled are addresses without a pool.
	usage    map[quotaOwner]int
	unpooled map[string]addressSet
	keyed    map[sharing]*sharers
	// last is the VIP of each pool and family that was created last, even if it was deleted.
	last map[poolFamily]creation
	// freed are free addresses that were used before; taken are those and the addresses of VIPs.
	freed freedAddresses
	taken addressRuns
}

// NewTable returns a table with these VIPs.
func NewTable(vips ...VIP) *Table {
	t := &Table{
		vips: map[netip.Addr]VIP{}, held: map[ownerName]addressSet{}, keyed: map[sharing]*sharers{},
		usage: map[quotaOwner]int{}, unpooled: map[string]addressSet{},
		last: map[poolFamily]creation{}, freed: newFreedAddresses(), taken: addressRuns{},
	}
	for _, vip := range vips {
		t.Put(vip)
	}
	return t
}

// Put adds a VIP or replaces the one with its address.
func (t *Table) Put(vip VIP) {
	t.forget(vip.Address)
	t.vips[vip.Address] = vip
	t.advance(vip)
	for _, claim := range vip.Claims {
		insert(t.held, ownerName{claim.Namespace, claim.Name}, vip.Address)
	}
	t.share(vip, true)
	t.charge(vip, 1)
}

// Delete removes the VIP of an address, if it exists.
func (t *Table) Delete(address netip.Addr) {
	if t.used(address) {
		t.forget(address)
		t.retire(address)
	}
}

func (t *Table) forget(address netip.Addr) {
	for _, claim := range t.vips[address].Claims {
		remove(t.held, ownerName{claim.Namespace, claim.Name}, address)
	}
	t.share(t.vips[address], false)
	t.charge(t.vips[address], -1)
	delete(t.vips, address)
}

func insert[K comparable](index map[K]addressSet, key K, address netip.Addr) {
	if index[key] == nil {
		index[key] = addressSet{}
	}
	index[key][address] = struct{}{}
}

func remove[K comparable](index map[K]addressSet, key K, address netip.Addr) {
	delete(index[key], address)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}

// Get returns the VIP of an address, and whether it exists.
func (t *Table) Get(address netip.Addr) (VIP, bool) {
	vip, ok := t.vips[address]
	return vip, ok
}

// Claimed returns the addresses with a claim of a Service of that name and any UID, sorted.
func (t *Table) Claimed(namespace, name string) []netip.Addr {
	return t.held[ownerName{namespace, name}].sorted()
}

// Held returns the addresses of an owner, sorted.
func (t *Table) Held(owner Owner) []netip.Addr {
	return slices.DeleteFunc(t.Claimed(owner.Namespace, owner.Name), func(address netip.Addr) bool {
		return !t.vips[address].heldBy(owner)
	})
}

func (s addressSet) sorted() []netip.Addr {
	addresses := make([]netip.Addr, 0, len(s))
	for address := range s {
		addresses = append(addresses, address)
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return addresses
}

func (t *Table) used(address netip.Addr) bool {
	_, ok := t.vips[address]
	return ok
}

// Addresses returns the addresses of all VIPs, sorted.
func (t *Table) Addresses() []netip.Addr {
	addresses := make([]netip.Addr, 0, len(t.vips))
	for address := range t.vips {
		addresses = append(addresses, address)
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return addresses
}
