// SPDX-License-Identifier: Apache-2.0

// Package ipam decides which Service gets which address. It is pure: pools,
// the VIPs that exist and a request go in, a plan comes out.
package ipam

import (
	"net/netip"
	"slices"
)

// Owner is a Service that has, or wants, an address. An empty UID is a
// reservation made by hand, for whatever Service has the name.
type Owner struct {
	Namespace, Name, UID string
}

// String is "namespace/name".
func (o Owner) String() string {
	return o.Namespace + "/" + o.Name
}

// VIP is an address that exists as an object and so is not free. Without
// owners it is reserved.
type VIP struct {
	Address netip.Addr
	// Pool that the address was taken from; empty when it was made by hand.
	Pool   string
	Owners []Owner
}

func (v VIP) heldBy(owner Owner) bool {
	return slices.ContainsFunc(v.Owners, func(o Owner) bool {
		return o.Namespace == owner.Namespace && o.Name == owner.Name && (o.UID == "" || o.UID == owner.UID)
	})
}

type ownerName struct {
	namespace, name string
}

// Table holds the VIPs that exist. It is not safe for concurrent use.
type Table struct {
	vips map[netip.Addr]VIP
	held map[ownerName]map[netip.Addr]struct{}
}

// NewTable returns a table with VIPs.
func NewTable(vips ...VIP) *Table {
	t := &Table{vips: map[netip.Addr]VIP{}, held: map[ownerName]map[netip.Addr]struct{}{}}
	for _, vip := range vips {
		t.Put(vip)
	}
	return t
}

// Put adds a VIP or replaces the one with its address.
func (t *Table) Put(vip VIP) {
	t.Delete(vip.Address)
	t.vips[vip.Address] = vip
	for _, owner := range vip.Owners {
		key := ownerName{owner.Namespace, owner.Name}
		if t.held[key] == nil {
			t.held[key] = map[netip.Addr]struct{}{}
		}
		t.held[key][vip.Address] = struct{}{}
	}
}

// Delete removes the VIP of an address, if there is one.
func (t *Table) Delete(address netip.Addr) {
	for _, owner := range t.vips[address].Owners {
		key := ownerName{owner.Namespace, owner.Name}
		delete(t.held[key], address)
		if len(t.held[key]) == 0 {
			delete(t.held, key)
		}
	}
	delete(t.vips, address)
}

// Get returns the VIP of an address.
func (t *Table) Get(address netip.Addr) (VIP, bool) {
	vip, ok := t.vips[address]
	return vip, ok
}

// Claimed returns, sorted, the addresses with a claim of a Service of that
// name, whatever its UID.
func (t *Table) Claimed(namespace, name string) []netip.Addr {
	addresses := make([]netip.Addr, 0, 2)
	for address := range t.held[ownerName{namespace, name}] {
		addresses = append(addresses, address)
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return addresses
}

// Held returns, sorted, the addresses that an owner has.
func (t *Table) Held(owner Owner) []netip.Addr {
	return slices.DeleteFunc(t.Claimed(owner.Namespace, owner.Name), func(address netip.Addr) bool {
		return !t.vips[address].heldBy(owner)
	})
}

func (t *Table) used(address netip.Addr) bool {
	_, ok := t.vips[address]
	return ok
}
