// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"net/netip"
	"time"
)

// An address that was given back is given again last: packets of its previous
// clients may still arrive, and caches of names still have it. Two things keep
// it from coming early. The order in which addresses got free is known as long
// as the table lives. What outlives it are the VIPs themselves: the search goes
// on behind the one that was made last, and a table that is filled again after
// a restart finds it by the times at which the VIPs were made.

// maxFreed is how many free addresses are remembered as formerly used; beyond,
// those that have been free for longest count as never used.
const maxFreed = 65536

// series are the addresses of one family that a pool gives out, one after the
// other.
type series struct {
	pool   string
	family Family
}

// place is the address of a VIP, and when the VIP was made.
type place struct {
	made    time.Time
	address netip.Addr
}

// compare orders places by time and, where VIPs were made in the same second,
// by address.
func (p place) compare(other place) int {
	return cmp.Or(p.made.Compare(other.made), p.address.Compare(other.address))
}

// advance notes that a VIP exists.
func (t *Table) advance(vip VIP) {
	t.freed.remove(vip.Address)
	t.taken.add(vip.Address)
	key := series{vip.Pool, FamilyOf(vip.Address)}
	next := place{vip.Made, vip.Address}
	if last, known := t.last[key]; !known || last.compare(next) < 0 {
		t.last[key] = next
	}
}

// retire notes that an address got free.
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

// next returns the address of a pool to be given next: the first free one behind
// that of the VIP which was made last, from the end on to the beginning, and of
// those that were used before the one that has been free for longest.
func (t *Table) next(pool Pool, family Family) (netip.Addr, bool) {
	if last, known := t.last[series{pool.Name, family}]; known {
		// Behind the last address of a family there is none.
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
