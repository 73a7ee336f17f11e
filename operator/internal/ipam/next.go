// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"net/netip"
	"time"
)

// Freed addresses are reused last, because packets of previous clients may still arrive and DNS caches still
// have them. While the table lives, it knows the order in which addresses became free. After a restart only the
// VIPs are known: the search continues after the VIP that was created last, by creation time.

// maxFreed bounds the number of remembered freed addresses; beyond, those that have been free for longest count
// as never used.
const maxFreed = 65536

// A series is the sequence of addresses of one family in a pool.
type series struct {
	pool   string
	family Family
}

// A place is the address of a VIP and its creation time.
type place struct {
	made    time.Time
	address netip.Addr
}

// compare orders places by time, and by address within the same second.
func (p place) compare(other place) int {
	return cmp.Or(p.made.Compare(other.made), p.address.Compare(other.address))
}

// advance records that a VIP exists.
func (t *Table) advance(vip VIP) {
	t.freed.remove(vip.Address)
	t.taken.add(vip.Address)
	key := series{vip.Pool, FamilyOf(vip.Address)}
	next := place{vip.Made, vip.Address}
	if last, known := t.last[key]; !known || last.compare(next) < 0 {
		t.last[key] = next
	}
}

// retire records that an address became free.
func (t *Table) retire(address netip.Addr) {
	t.freed.add(address)
	if t.freed.len() <= maxFreed {
		return
	}
	t.freed.forget(maxFreed / 2)
	t.taken = runs{}
	for used := range t.vips {
		t.taken.add(used)
	}
	for freed := range t.freed.order {
		t.taken.add(freed)
	}
}

// next returns the next address of a pool to assign: the first free one after the VIP created last, wrapping
// around at the end, and of previously used addresses the one that has been free for longest.
func (t *Table) next(pool Pool, family Family) (netip.Addr, bool) {
	if last, known := t.last[series{pool.Name, family}]; known {
		// The last address of a family has no successor.
		if from := last.address.Next(); from.IsValid() {
			if address, ok := pool.Addresses.firstFree(from, t.taken.behind); ok {
				return address, true
			}
		}
	}
	if address, ok := pool.Addresses.firstFree(lowest(family), t.taken.behind); ok {
		return address, true
	}
	return t.freed.first(pool.Addresses, family)
}
