// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// An address that was given back is given again last: packets of its former
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
	delete(t.freed, vip.Address)
	key := series{vip.Pool, FamilyOf(vip.Address)}
	next := place{vip.Made, vip.Address}
	if last, known := t.last[key]; !known || last.compare(next) < 0 {
		t.last[key] = next
	}
}

// retire notes that an address got free.
func (t *Table) retire(address netip.Addr) {
	t.retired++
	t.freed[address] = t.retired
	if len(t.freed) <= maxFreed {
		return
	}
	longest := t.freedFirst(func(netip.Addr) bool { return true })
	for _, address := range longest[:len(longest)-maxFreed/2] {
		delete(t.freed, address)
	}
}

// freedFirst returns the free addresses that were used before and match, those
// that have been free for longest first.
func (t *Table) freedFirst(match func(netip.Addr) bool) []netip.Addr {
	var addresses []netip.Addr
	for address := range t.freed {
		if match(address) {
			addresses = append(addresses, address)
		}
	}
	slices.SortFunc(addresses, func(a, b netip.Addr) int { return cmp.Compare(t.freed[a], t.freed[b]) })
	return addresses
}

// next returns the address of a pool to be given next: the first free one behind
// that of the VIP which was made last, from the end on to the beginning, and of
// those that were used before the one that has been free for longest.
func (t *Table) next(pool Pool, family Family) (netip.Addr, bool) {
	taken := func(address netip.Addr) bool {
		_, freed := t.freed[address]
		return freed || t.used(address)
	}
	if last, known := t.last[series{pool.Name, family}]; known {
		// Behind the last address of a family there is none.
		if from := last.address.Next(); from.IsValid() {
			if address, ok := pool.Addresses.firstFree(from, taken); ok {
				return address, true
			}
		}
	}
	if address, ok := pool.Addresses.firstFree(lowest(family), taken); ok {
		return address, true
	}
	freed := t.freedFirst(func(address netip.Addr) bool {
		return FamilyOf(address) == family && pool.Addresses.Contains(address)
	})
	if len(freed) == 0 {
		return netip.Addr{}, false
	}
	return freed[0], true
}
