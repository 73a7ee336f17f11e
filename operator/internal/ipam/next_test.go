// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go4.org/netipx"
	"pgregory.net/rapid"
)

// One address more than maxFreed drops the half that has been free for longest. Used addresses remain taken.
func TestFreedAddressesAreBounded(t *testing.T) {
	for _, test := range []struct{ highest, used, want string }{
		{"198.18.255.255", "198.19.255.255", "198.18.255.255"},
		{"198.19.0.0", "198.19.255.255", "198.18.128.0"},
		{"198.19.0.1", "198.18.128.0", "198.18.128.1"},
	} {
		pool := Pool{Name: "p", Addresses: setOf(rangeOf("198.18.0.0", test.highest))}
		table := NewTable()
		lowest, used := netip.MustParseAddr("198.18.0.0"), netip.MustParseAddr(test.used)
		table.Put(VIP{Address: used})
		for address := netip.MustParseAddr(test.highest); lowest.Compare(address) <= 0; address = address.Prev() {
			if address != used {
				table.Put(VIP{Address: address, Pool: "p"})
				table.Delete(address)
			}
		}
		if got, _ := table.next(pool, IPv4); got.String() != test.want {
			t.Errorf("next after all addresses from %s to %s = %s, want %s", test.highest, lowest, got, test.want)
		}
	}
}

type lease struct {
	t     *rapid.T
	pool  Pool
	size  int
	table *Table
	now   time.Time
	count int

	vips map[netip.Addr]VIP
	// used are all addresses that were ever assigned; freed are free ones, longest first.
	used  map[netip.Addr]bool
	freed []netip.Addr
}

func newLease(t *rapid.T) *lease {
	pool := Pool{Name: "p", AutoAssign: true}
	family := rapid.SampledFrom([]Family{IPv4, IPv6}).Draw(t, "family")
	size := rapid.IntRange(1, 12).Draw(t, "size")
	var ranges []netipx.IPRange
	for offset := range 64 {
		address := addressAt(offset)
		if FamilyOf(address) == family && len(ranges) < size && rapid.Bool().Draw(t, "of the pool") {
			ranges = append(ranges, netipx.IPRangeFrom(address, address))
		}
	}
	pool.Addresses = setOf(ranges...)
	return &lease{
		t: t, pool: pool, size: len(ranges), table: NewTable(), now: time.Unix(1700000000, 0),
		vips: map[netip.Addr]VIP{}, used: map[netip.Addr]bool{},
	}
}

func (l *lease) give() (netip.Addr, bool) {
	l.count++
	owner := Owner{Namespace: "ns", Name: fmt.Sprint(l.count), UID: fmt.Sprint(l.count)}
	family := IPv4
	if l.pool.Addresses.hasFamily(IPv6) {
		family = IPv6
	}
	plan := Make(l.table, []Pool{l.pool}, Request{Owner: owner, Families: []Family{family}, RequireAll: true, Eligible: []string{"p"}})
	if len(plan.Create) != 1 {
		return netip.Addr{}, false
	}
	write := plan.Create[0]
	vip := VIP{Address: write.Address, Pool: "p", CreatedAt: l.now, Claims: []Claim{write.Claim}}
	l.table.Put(vip)
	l.vips[write.Address] = vip
	return write.Address, true
}

func (l *lease) free(address netip.Addr) {
	l.table.Delete(address)
	delete(l.vips, address)
	l.freed = append(l.freed, address)
}

func (l *lease) restart() {
	l.table = NewTable()
	for _, vip := range l.vips {
		l.table.Put(vip)
	}
}

func (l *lease) drawGiven(match func(netip.Addr) bool) (netip.Addr, bool) {
	var given []netip.Addr
	for address := range l.vips {
		if match(address) {
			given = append(given, address)
		}
	}
	if len(given) == 0 {
		return netip.Addr{}, false
	}
	slices.SortFunc(given, netip.Addr.Compare)
	return rapid.SampledFrom(given).Draw(l.t, "freed"), true
}

// A released address is assigned only if no unused address remains, starting with the one that has been
// free for longest.
func TestFreedIsAssignedLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLease(t)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			l.now = l.now.Add(time.Duration(rapid.IntRange(0, 1).Draw(t, "seconds")) * time.Second)
			if rapid.Bool().Draw(t, "free") {
				if address, ok := l.drawGiven(func(netip.Addr) bool { return true }); ok {
					l.free(address)
				}
				continue
			}
			address, ok := l.give()
			switch {
			case !ok && len(l.vips) < l.size:
				t.Fatalf("no address returned, but of %d addresses only %d are used", l.size, len(l.vips))
			case !ok:
			case !l.used[address]:
				l.used[address] = true
			case len(l.used) < l.size:
				t.Fatalf("%s was used before, although %d of %d were never used", address, l.size-len(l.used), l.size)
			case l.freed[0] != address:
				t.Fatalf("%s was returned before %v", address, l.freed)
			default:
				l.freed = l.freed[1:]
			}
		}
	})
}

// After a restart the search continues after the VIP created last.
func TestFreedIsAssignedLastAfterRestart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLease(t)
		var last netip.Addr
		for len(l.used) < l.size {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				l.restart()
			case 1:
				if address, ok := l.drawGiven(func(address netip.Addr) bool { return address != last }); ok {
					l.free(address)
				}
			default:
				l.now = l.now.Add(time.Duration(rapid.IntRange(0, 1).Draw(t, "seconds")) * time.Second)
				address, ok := l.give()
				if !ok || l.used[address] {
					t.Fatalf("returned %v (%v) after %v", address, ok, l.used)
				}
				l.used[address], last = true, address
			}
		}
	})
}

func TestFreedIsBounded(t *testing.T) {
	table := NewTable()
	pool := Pool{Name: "p", Addresses: setOf(netipx.RangeOfPrefix(netip.MustParsePrefix("2001:db8::/64")))}
	address := netip.MustParseAddr("2001:db8::")
	for range maxFreed + 10 {
		table.Put(VIP{Address: address, Pool: "p"})
		table.Delete(address)
		address = address.Next()
	}
	if table.freed.len() > maxFreed || table.freed.len() < maxFreed/2 {
		t.Errorf("%d freed addresses are stored", table.freed.len())
	}
	if next, ok := table.next(pool, IPv6); !ok || next != address {
		t.Errorf("next = %s, %v, want %s", next, ok, address)
	}
}

// A pool may have hundreds of ranges, and every Service without an address searches it.
func TestSearchCopiesNothing(t *testing.T) {
	pool := Pool{Name: "p", Addresses: setOf(
		rangeOf("2001:db8::", "2001:db8::"), rangeOf("2001:db8::2", "2001:db8::2"), rangeOf("2001:db8::4", "2001:db8::4"),
	)}
	table := NewTable(VIP{Address: netip.MustParseAddr("2001:db8::2"), Pool: "p"})
	allocations := testing.AllocsPerRun(10, func() {
		if address, ok := table.next(pool, IPv6); !ok || address != netip.MustParseAddr("2001:db8::4") {
			t.Errorf("next = %s, %v, want 2001:db8::4", address, ok)
		}
	})
	if allocations > 0 {
		t.Errorf("a search makes %v allocations", allocations)
	}
}

// After all addresses of a pool were used, the next one is still found in a few steps.
func TestExhaustedPoolIsCheap(t *testing.T) {
	prefix := netip.MustParsePrefix("198.18.0.0/16")
	table, pool := usedUp(prefix)
	first, ok := table.next(pool, IPv4)
	if !ok || first != prefix.Addr() {
		t.Fatalf("next = %s, %v", first, ok)
	}
	table.Put(VIP{Address: first, Pool: "p"})
	if next, ok := table.next(pool, IPv4); !ok || next != first.Next() {
		t.Errorf("next = %s, %v", next, ok)
	}
	steps := 0
	for address, known := table.taken[first]; known; address, known = table.taken[address] {
		steps++
	}
	if steps > 1 {
		t.Errorf("a search takes %d steps through used addresses", steps)
	}
	for prefix, block := range table.freed.blocks {
		if len(block.queue) > 3*(1<<blockBits)+1 {
			t.Errorf("%s has %d entries", prefix, len(block.queue))
		}
	}
}

func usedUp(prefix netip.Prefix) (*Table, Pool) {
	table := NewTable()
	for address := prefix.Addr(); prefix.Contains(address); address = address.Next() {
		table.Put(VIP{Address: address, Pool: "p"})
		table.Delete(address)
	}
	return table, Pool{Name: "p", AutoAssign: true, Addresses: setOf(netipx.RangeOfPrefix(prefix))}
}

func TestOldestFreedAddressFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		freed := newFreedAddresses()
		var order []netip.Addr
		at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, byte(i / 4), byte(i % 4)}) }
		var ranges []netipx.IPRange
		for i := range 32 {
			if rapid.Bool().Draw(t, "of the set") {
				ranges = append(ranges, netipx.IPRangeFrom(at(i), at(i)))
			}
		}
		set := setOf(ranges...)
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			address := at(rapid.IntRange(0, 31).Draw(t, "address"))
			order = slices.DeleteFunc(order, func(a netip.Addr) bool { return a == address })
			if rapid.Bool().Draw(t, "gets free") {
				freed.add(address)
				order = append(order, address)
			} else {
				freed.remove(address)
			}
			var want netip.Addr
			if i := slices.IndexFunc(order, set.Contains); i >= 0 {
				want = order[i]
			}
			if got, ok := freed.first(set, IPv4); got != want || ok != want.IsValid() {
				t.Fatalf("first = %s, %v, want %s", got, ok, want)
			}
			if freed.len() != len(order) {
				t.Fatalf("%d addresses are free, want %d", freed.len(), len(order))
			}
		}
	})
}
