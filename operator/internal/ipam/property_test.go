// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// world is a cluster as far as addresses are concerned: pools, Services and
// the VIPs that plans have made.
type world struct {
	pools    []Pool
	reserved map[string]Set
	services map[Owner]Request
	vips     map[netip.Addr]VIP
}

func (w *world) table() *Table {
	table := NewTable()
	// The order of the map is another one each time, as after a restart.
	for _, vip := range w.vips {
		table.Put(vip)
	}
	return table
}

// carryOut applies a plan as the controller does.
func (w *world) carryOut(t *rapid.T, owner Owner, plan Plan) {
	for _, grant := range plan.Create {
		if _, exists := w.vips[grant.Address]; exists {
			t.Fatalf("%s is created for %s, but exists", grant.Address, owner)
		}
		w.vips[grant.Address] = VIP{Address: grant.Address, Pool: grant.Pool, Owners: []Owner{owner}}
	}
	for _, address := range plan.Bind {
		vip, exists := w.vips[address]
		if !exists || len(vip.Owners) > 0 {
			t.Fatalf("%s is bound for %s, but is %+v", address, owner, vip)
		}
		vip.Owners = []Owner{owner}
		w.vips[address] = vip
	}
	for _, address := range plan.Release {
		if !slices.Equal(w.vips[address].Owners, []Owner{owner}) {
			t.Fatalf("%s is released by %s, but is %+v", address, owner, w.vips[address])
		}
		delete(w.vips, address)
	}
}

func (w *world) reconcile(t *rapid.T, owner Owner) Plan {
	plan := Make(w.table(), w.pools, w.services[owner])
	w.carryOut(t, owner, plan)
	return plan
}

var poolNames = []string{"p0", "p1", "p2", "p3"}

// drawPools cuts a few addresses into disjoint pools.
func drawPools(t *rapid.T) ([]Pool, map[string]Set) {
	byPool := map[string][]Range{}
	for offset := range 16 {
		for _, base := range []int{0, 32} {
			name := rapid.SampledFrom(append([]string{""}, poolNames...)).Draw(t, "pool of address")
			address := addressAt(base + offset)
			byPool[name] = append(byPool[name], Range{First: address, Last: address})
		}
	}
	var pools []Pool
	all := map[string]Set{}
	for _, name := range poolNames {
		reserved := NewSet(drawRanges(t, "reserved")...)
		all[name] = reserved
		pools = append(pools, Pool{
			Name:       name,
			Priority:   rapid.Int32Range(0, 2).Draw(t, "priority"),
			AutoAssign: rapid.Bool().Draw(t, "autoAssign"),
			Addresses:  NewSet(byPool[name]...).Minus(reserved),
		})
	}
	return pools, all
}

func drawRequest(t *rapid.T, owner Owner) Request {
	request := Request{
		Owner:      owner,
		Families:   rapid.SampledFrom([][]Family{{IPv4}, {IPv6}, {IPv4, IPv6}, {IPv6, IPv4}}).Draw(t, "families"),
		RequireAll: rapid.Bool().Draw(t, "requireAll"),
		Eligible:   rapid.SliceOfDistinct(rapid.SampledFrom(poolNames), rapid.ID).Draw(t, "eligible"),
		Pool:       rapid.SampledFrom([]string{"", "", "", "p0", "p1", "none"}).Draw(t, "pool"),
	}
	for _, base := range []int{0, 32} {
		if rapid.IntRange(0, 3).Draw(t, "asks") == 0 {
			request.Asked = append(request.Asked, addressAt(base+rapid.IntRange(0, 17).Draw(t, "asked")))
		}
	}
	return request
}

func drawWorld(t *rapid.T) *world {
	w := &world{services: map[Owner]Request{}, vips: map[netip.Addr]VIP{}}
	w.pools, w.reserved = drawPools(t)
	for i := range rapid.IntRange(1, 12).Draw(t, "services") {
		owner := Owner{Namespace: "ns", Name: fmt.Sprintf("s%d", i), UID: fmt.Sprint(i)}
		w.services[owner] = drawRequest(t, owner)
	}
	for range rapid.IntRange(0, 3).Draw(t, "reserved by hand") {
		address := addressAt(rapid.IntRange(0, 63).Draw(t, "address"))
		w.vips[address] = VIP{Address: address}
	}
	return w
}

func (w *world) owners() []Owner {
	return slices.SortedFunc(maps.Keys(w.services), func(a, b Owner) int { return strings.Compare(a.Name, b.Name) })
}

func (w *world) held(owner Owner) []netip.Addr {
	return w.table().Held(owner)
}

// check is what holds after any plan.
func (w *world) check(t *rapid.T, owner Owner, plan Plan) {
	request := w.services[owner]
	held := w.held(owner)
	if want := slices.SortedFunc(slices.Values(plan.Addresses), netip.Addr.Compare); !slices.Equal(held, want) {
		t.Fatalf("%s holds %v, the plan says %v", owner, held, want)
	}
	next := 0
	for _, address := range plan.Addresses {
		i := slices.Index(request.Families[next:], FamilyOf(address))
		if i < 0 {
			t.Fatalf("%s has %v, not in the order of %v", owner, plan.Addresses, request.Families)
		}
		next += i + 1
	}
	if plan.Satisfied && request.RequireAll && len(plan.Addresses) != len(request.Families) {
		t.Fatalf("%s is satisfied with %v for %v", owner, plan.Addresses, request.Families)
	}
	if !plan.Satisfied && len(plan.Refusals) == 0 {
		t.Fatalf("%s is not satisfied, but is not told why", owner)
	}
	if len(plan.Addresses) < len(request.Families) && !plan.Waiting {
		t.Fatalf("%s has %v for %v and does not wait", owner, plan.Addresses, request.Families)
	}
	w.checkGrants(t, request, plan)
}

// checkGrants is what holds for new addresses.
func (w *world) checkGrants(t *rapid.T, request Request, plan Plan) {
	for _, grant := range plan.Create {
		pool := w.pools[slices.Index(poolNames, grant.Pool)]
		asked := slices.Contains(request.Asked, grant.Address)
		switch {
		case !pool.Addresses.Contains(grant.Address), w.reserved[grant.Pool].Contains(grant.Address):
			t.Fatalf("%s is not of pool %s", grant.Address, grant.Pool)
		case !slices.Contains(request.Eligible, grant.Pool):
			t.Fatalf("%s is of pool %s, which is not eligible", grant.Address, grant.Pool)
		case request.Pool != "" && request.Pool != grant.Pool:
			t.Fatalf("%s is of pool %s, %s was asked for", grant.Address, grant.Pool, request.Pool)
		case !asked && request.Pool == "" && !pool.AutoAssign:
			t.Fatalf("%s is of pool %s, which was not asked for", grant.Address, grant.Pool)
		}
	}
	// Only what was asked for by address may have been reserved by hand.
	for _, address := range plan.Bind {
		if !slices.Contains(request.Asked, address) {
			t.Fatalf("%s was reserved, and given without being asked for", address)
		}
	}
}

func TestNeverTwoOwnersAndSticky(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			owner := rapid.SampledFrom(w.owners()).Draw(t, "service")
			before := w.held(owner)
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				w.services[owner] = drawRequest(t, owner)
			case 1:
				w.pools, w.reserved = drawPools(t)
			case 2:
				w.carryOut(t, owner, Plan{Release: before})
				continue
			}
			plan := w.reconcile(t, owner)
			w.check(t, owner, plan)
			for address, vip := range w.vips {
				if len(vip.Owners) > 1 {
					t.Fatalf("%s has the owners %v", address, vip.Owners)
				}
			}
			w.checkSticky(t, owner, before, plan)
			if again := Make(w.table(), w.pools, w.services[owner]); len(again.Create)+len(again.Bind)+len(again.Release) > 0 {
				t.Fatalf("the plan of %s is not stable: %+v after %+v", owner, again, plan)
			}
		}
	})
}

// checkSticky is that a Service which asks for nothing in particular keeps
// what it has, whatever became of pools and other Services.
func (w *world) checkSticky(t *rapid.T, owner Owner, before []netip.Addr, plan Plan) {
	request := w.services[owner]
	for _, address := range before {
		kept := slices.Contains(plan.Addresses, address)
		wanted := slices.Contains(request.Families, FamilyOf(address))
		asks := request.Pool != "" || slices.ContainsFunc(request.Asked, func(a netip.Addr) bool { return FamilyOf(a) == FamilyOf(address) })
		if wanted && !asks && !kept {
			t.Fatalf("%s lost %s: %+v", owner, address, plan)
		}
		if wanted && !slices.ContainsFunc(plan.Addresses, func(a netip.Addr) bool { return FamilyOf(a) == FamilyOf(address) }) {
			t.Fatalf("%s has lost its %s address: %+v", owner, FamilyOf(address), plan)
		}
	}
}

// A pool serves exactly as many Services as it has free addresses.
func TestExhaustionIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		family := rapid.SampledFrom([]Family{IPv4, IPv6}).Draw(t, "family")
		ranges := drawRanges(t, "ranges")
		pool := Pool{Name: "p", AutoAssign: true, Addresses: NewSet(ranges...).Minus(NewSet(drawRanges(t, "reserved")...))}
		table := NewTable()
		free := 0
		for offset := range 64 {
			address := addressAt(offset)
			if FamilyOf(address) != family || !pool.Addresses.Contains(address) {
				continue
			}
			if rapid.Bool().Draw(t, "taken") {
				table.Put(VIP{Address: address, Owners: []Owner{other}})
			} else {
				free++
			}
		}
		for i := range 70 {
			owner := Owner{Namespace: "ns", Name: fmt.Sprint(i), UID: fmt.Sprint(i)}
			plan := Make(table, []Pool{pool}, Request{Owner: owner, Families: []Family{family}, RequireAll: true, Eligible: []string{"p"}})
			if got := len(plan.Create) == 1; got != (i < free) {
				t.Fatalf("Service %d of %d free addresses: %+v", i, free, plan)
			}
			for _, grant := range plan.Create {
				table.Put(VIP{Address: grant.Address, Pool: "p", Owners: []Owner{owner}})
			}
		}
	})
}

// A plan is a function of its input, not of the order of maps or slices.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for _, owner := range w.owners() {
			first := Make(w.table(), w.pools, w.services[owner])
			w.pools = rapid.Permutation(w.pools).Draw(t, "pools")
			second := Make(w.table(), w.pools, w.services[owner])
			if !slices.Equal(first.Create, second.Create) || !slices.Equal(first.Addresses, second.Addresses) {
				t.Fatalf("%+v and %+v", first, second)
			}
			w.pools = slices.SortedFunc(slices.Values(w.pools), func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
			w.reconcile(t, owner)
		}
	})
}

// The highest priority with a free address is taken.
func TestPriority(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		owner := w.owners()[0]
		request := w.services[owner]
		request.Families, request.Asked, request.Pool = []Family{IPv4}, nil, ""
		table := w.table()
		plan := Make(table, w.pools, request)
		for _, pool := range w.pools {
			_, free := pool.Addresses.FirstFree(IPv4, table.used)
			if !free || !pool.AutoAssign || !slices.Contains(request.Eligible, pool.Name) {
				continue
			}
			if len(plan.Create) != 1 {
				t.Fatalf("pool %s has a free address: %+v", pool.Name, plan)
			}
			chosen := w.pools[slices.Index(poolNames, plan.Create[0].Pool)]
			if chosen.Priority < pool.Priority || chosen.Priority == pool.Priority && chosen.Name > pool.Name {
				t.Fatalf("pool %s comes before %s", pool.Name, chosen.Name)
			}
		}
	})
}

func TestHugePoolIsCheap(t *testing.T) {
	pool := Pool{Name: "p", AutoAssign: true, Addresses: NewSet(PrefixRange(netip.MustParsePrefix("2001:db8::/32"))).
		Minus(NewSet(PrefixRange(netip.MustParsePrefix("2001:db8::/96"))))}
	table := NewTable()
	request := Request{Families: []Family{IPv6}, RequireAll: true, Eligible: []string{"p"}}
	for i := range 200 {
		request.Owner = Owner{Namespace: "ns", Name: fmt.Sprint(i), UID: fmt.Sprint(i)}
		steps := 0
		pool.Addresses.FirstFree(IPv6, func(address netip.Addr) bool { steps++; return table.used(address) })
		if steps > i+1 {
			t.Fatalf("%d steps to find a free address beside %d used ones", steps, i)
		}
		plan := Make(table, []Pool{pool}, request)
		table.Put(VIP{Address: plan.Create[0].Address, Pool: "p", Owners: []Owner{request.Owner}})
	}
}
