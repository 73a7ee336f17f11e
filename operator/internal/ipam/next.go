// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"net/netip"
	"time"
)

// Freed addresses are reused last, because packets of previous clients and DNS caches may outlive them.
// After a restart the order of release is unknown, and the search continues after the VIP created last.

// maxFreed bounds remembered freed addresses; those free for longest then count as never used.
const maxFreed = 65536

type poolFamily struct {
	pool   string
	family Family
}

type creation struct {
	at      time.Time
	address netip.Addr
}

func (p creation) compare(other creation) int {
	return cmp.Or(p.at.Compare(other.at), p.address.Compare(other.address))
}

func (t *Table) advance(vip VIP) {
	t.freed.remove(vip.Address)
	t.taken.add(vip.Address)
	key := poolFamily{vip.Pool, FamilyOf(vip.Address)}
	next := creation{vip.CreatedAt, vip.Address}
	if last, known := t.last[key]; !known || last.compare(next) < 0 {
		t.last[key] = next
	}
}

func (t *Table) retire(address netip.Addr) {
	t.freed.add(address)
	if t.freed.len() <= maxFreed {
		return
	}
	t.freed.forget(maxFreed / 2)
	t.taken = addressRuns{}
	for used := range t.vips {
		t.taken.add(used)
	}
	for freed := range t.freed.order {
		t.taken.add(freed)
	}
}

// next returns the first free address after the VIP created last, wrapping around, or else the previously
// used address that has been free for longest.
func (t *Table) next(pool Pool, family Family) (netip.Addr, bool) {
	if last, known := t.last[poolFamily{pool.Name, family}]; known {
		// The last address of a family has no successor.
		if from := last.address.Next(); from.IsValid() {
			if address, ok := pool.Addresses.firstFree(from, t.taken.nextUnused); ok {
				return address, true
			}
		}
	}
	if address, ok := pool.Addresses.firstFree(lowest(family), t.taken.nextUnused); ok {
		return address, true
	}
	return t.freed.first(pool.Addresses, family)
}
