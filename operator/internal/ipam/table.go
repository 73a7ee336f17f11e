// SPDX-License-Identifier: Apache-2.0

// Package ipam decides which Service gets which address. It is pure: pools,
// the VIPs that exist and a request go in, a plan comes out.
package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Owner is a Service that has, or wants, an address. An empty UID is a
// reservation for whatever Service has the name: one made manually, or what a
// Service that is gone has left.
type Owner struct {
	Namespace, Name, UID string
}

// String is "namespace/name".
func (o Owner) String() string {
	return o.Namespace + "/" + o.Name
}

func (o Owner) sameName(other Owner) bool {
	return o.Namespace == other.Namespace && o.Name == other.Name
}

// Port is a port of a VIP; Protocol is as in Service.spec.ports, never empty.
type Port struct {
	Number   uint16
	Protocol string
}

// String is "53/UDP".
func (p Port) String() string {
	return fmt.Sprintf("%d/%s", p.Number, p.Protocol)
}

// Compare orders ports by number, then protocol.
func (p Port) Compare(other Port) int {
	return cmp.Or(cmp.Compare(p.Number, other.Number), cmp.Compare(p.Protocol, other.Protocol))
}

// Claim is an owner's right to a VIP.
type Claim struct {
	Owner
	// SharingKey lets Services with the same key share the VIP; empty: none.
	SharingKey string
	// Ports are those that no other owner can have, sorted. A VIP that has one
	// owner, without a sharing key, needs none.
	Ports []Port
	// Releasing is true where the owner gives the VIP up. It can still keep it.
	Releasing bool
}

func (c Claim) equal(other Claim) bool {
	return c.Owner == other.Owner && c.SharingKey == other.SharingKey && slices.Equal(c.Ports, other.Ports) &&
		c.Releasing == other.Releasing
}

// VIP is an address that exists as an object and so is not free. Without
// claims it is reserved.
type VIP struct {
	Address netip.Addr
	// Pool that the address was taken from; empty when it was made manually.
	Pool string
	// Made is when the VIP was made, in whole seconds.
	Made time.Time
	// Claims in the order in which they were made.
	Claims []Claim
}

// claimOf returns the place of an owner's claim, -1 where it has none.
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

// Table holds the VIPs that exist. It is not safe for concurrent use.
type Table struct {
	vips map[netip.Addr]VIP
	// held are the addresses by the names of their owners.
	held map[ownerName]addressSet
	// spent counts the addresses of a pool that a namespace has; unpooled are those without a pool.
	spent    map[spender]int
	unpooled map[string]addressSet
	// keyed are the addresses by the sharing keys of their claims.
	keyed map[sharing]*sharers
	// last is the VIP of each series that was made last, also when it is gone.
	last map[series]place
	// freed are the free addresses that were used before; taken are these and those of the VIPs.
	freed freedAddresses
	taken runs
}

// NewTable returns a table with VIPs.
func NewTable(vips ...VIP) *Table {
	t := &Table{
		vips: map[netip.Addr]VIP{}, held: map[ownerName]addressSet{}, keyed: map[sharing]*sharers{},
		spent: map[spender]int{}, unpooled: map[string]addressSet{},
		last: map[series]place{}, freed: newFreedAddresses(), taken: runs{},
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
	t.spend(vip, 1)
}

// Delete removes the VIP of an address, if there is one.
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
	t.spend(t.vips[address], -1)
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

// Get returns the VIP of an address.
func (t *Table) Get(address netip.Addr) (VIP, bool) {
	vip, ok := t.vips[address]
	return vip, ok
}

// Claimed returns, sorted, the addresses with a claim of a Service of that
// name, whatever its UID.
func (t *Table) Claimed(namespace, name string) []netip.Addr {
	return t.held[ownerName{namespace, name}].sorted()
}

// Held returns, sorted, the addresses that an owner has.
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

// Addresses returns those of all VIPs, sorted.
func (t *Table) Addresses() []netip.Addr {
	addresses := make([]netip.Addr, 0, len(t.vips))
	for address := range t.vips {
		addresses = append(addresses, address)
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return addresses
}
