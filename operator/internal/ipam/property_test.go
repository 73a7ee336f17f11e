// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go4.org/netipx"
	"pgregory.net/rapid"
)

type world struct {
	pools    []Pool
	reserved map[string]Addresses
	services map[Owner]Request
	vips     map[netip.Addr]VIP
}

func (w *world) table() *Table {
	table := NewTable()
	// Map iteration randomizes the order, as after a restart.
	for _, vip := range w.vips {
		table.Put(vip)
	}
	return table
}

func (w *world) carryOut(t *rapid.T, owner Owner, plan Plan) {
	for _, write := range plan.Create {
		if _, exists := w.vips[write.Address]; exists {
			t.Fatalf("VIP %s is created for %s, but already exists", write.Address, owner)
		}
		w.vips[write.Address] = VIP{Address: write.Address, Pool: write.Pool, Claims: []Claim{write.Claim}}
	}
	for _, write := range plan.Bind {
		vip, exists := w.vips[write.Address]
		if !exists {
			t.Fatalf("VIP %s is bound for %s, but does not exist", write.Address, owner)
		}
		w.checkBind(t, vip, write)
		vip.Claims = withClaim(vip.Claims, write.Claim)
		w.vips[write.Address] = vip
	}
	for _, address := range plan.Release {
		vip := w.vips[address]
		i := vip.claimOf(owner)
		if i < 0 || vip.Claims[i].UID == "" {
			t.Fatalf("VIP %s is released by %s, but its state is %+v", address, owner, vip)
		}
		vip.Claims = slices.Clone(vip.Claims)
		if isLast := len(vip.Claims) == 1; isLast && isRetained(address) {
			vip.Claims[i].UID = ""
		} else {
			vip.Claims = slices.Delete(vip.Claims, i, i+1)
		}
		if w.vips[address] = vip; len(vip.Claims) == 0 {
			delete(w.vips, address)
		}
	}
}

// isRetained reports whether a VIP stays reserved for its last Service, which half of them do.
func isRetained(address netip.Addr) bool {
	return address.As16()[15]%2 == 1
}

func withClaim(claims []Claim, claim Claim) []Claim {
	claims = slices.Clone(claims)
	if i := slices.IndexFunc(claims, func(c Claim) bool { return c.Owner == claim.Owner }); i >= 0 {
		claims[i] = claim
		return claims
	}
	return append(slices.DeleteFunc(claims, func(c Claim) bool { return c.sameName(claim.Owner) }), claim)
}

func (w *world) checkBind(t *rapid.T, vip VIP, write Write) {
	owner := write.Claim.Owner
	request := w.services[owner]
	if vip.heldBy(owner) {
		return
	}
	if len(vip.Claims) == 0 {
		// Only requested addresses may have been reserved manually.
		if !slices.Contains(request.Addresses, write.Address) {
			t.Fatalf("%s is reserved, but was assigned without a request", write.Address)
		}
		return
	}
	shared := slices.ContainsFunc(w.pools, func(pool Pool) bool { return pool.SharedByAll && pool.Addresses.Contains(write.Address) })
	for _, claim := range vip.Claims {
		if claim.SharingKey == "" || claim.SharingKey != request.SharingKey || !shared && claim.Namespace != owner.Namespace {
			t.Fatalf("%s joins %+v with %+v", owner, vip, write.Claim)
		}
	}
	if !slices.Equal(write.Claim.Ports, request.Ports) {
		t.Fatalf("%s joins %s with ports %v, want %v", owner, write.Address, write.Claim.Ports, request.Ports)
	}
}

func (w *world) reconcile(t *rapid.T, owner Owner) Plan {
	plan := Make(w.table(), w.pools, w.services[owner])
	w.carryOut(t, owner, plan)
	return plan
}

var poolNames = []string{"p0", "p1", "p2", "p3"}

func drawPools(t *rapid.T) ([]Pool, map[string]Addresses) {
	byPool := map[string][]netipx.IPRange{}
	for offset := range 16 {
		for _, base := range []int{0, 32} {
			name := rapid.SampledFrom(append([]string{""}, poolNames...)).Draw(t, "pool of address")
			address := addressAt(base + offset)
			byPool[name] = append(byPool[name], netipx.IPRangeFrom(address, address))
		}
	}
	var pools []Pool
	all := map[string]Addresses{}
	for _, name := range poolNames {
		reserved := drawRanges(t, "reserved")
		all[name] = setOf(reserved...)
		pools = append(pools, Pool{
			Name:       name,
			Priority:   rapid.Int32Range(0, 2).Draw(t, "priority"),
			AutoAssign: rapid.Bool().Draw(t, "autoAssign"),

			SharedByAll: rapid.Bool().Draw(t, "sharedByAll"),
			Addresses:   without(byPool[name], reserved...),
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
		SharingKey: rapid.SampledFrom([]string{"", "", "k", "k", "l"}).Draw(t, "key"),
		Ports:      drawPorts(t),
		Quotas:     rapid.MapOfN(rapid.SampledFrom(poolNames), rapid.IntRange(0, 3), 0, 2).Draw(t, "quotas"),
	}
	for _, base := range []int{0, 32} {
		if rapid.IntRange(0, 3).Draw(t, "asks") == 0 {
			for _, offset := range rapid.SliceOfNDistinct(rapid.IntRange(0, 17), 1, 3, rapid.ID).Draw(t, "asked") {
				request.Addresses = append(request.Addresses, addressAt(base+offset))
			}
		}
	}
	return request
}

func drawPorts(t *rapid.T) []Port {
	ports := rapid.SliceOfNDistinct(rapid.SampledFrom([]Port{
		{53, "TCP"}, {53, "UDP"}, {80, "TCP"}, {443, "TCP"}, {443, "UDP"}, {8080, "TCP"},
	}), 1, 3, rapid.ID).Draw(t, "ports")
	slices.SortFunc(ports, Port.Compare)
	return ports
}

func drawWorld(t *rapid.T) *world {
	w := &world{services: map[Owner]Request{}, vips: map[netip.Addr]VIP{}}
	w.pools, w.reserved = drawPools(t)
	for i := range rapid.IntRange(1, 12).Draw(t, "services") {
		owner := Owner{Namespace: fmt.Sprintf("ns%d", i%2), Name: fmt.Sprintf("s%d", i), UID: fmt.Sprint(i)}
		w.services[owner] = drawRequest(t, owner)
	}
	for range rapid.IntRange(0, 3).Draw(t, "reserved manually") {
		address := addressAt(rapid.IntRange(0, 63).Draw(t, "address"))
		w.vips[address] = VIP{Address: address}
	}
	return w
}

func (w *world) owners() []Owner {
	return slices.SortedFunc(maps.Keys(w.services), func(a, b Owner) int { return strings.Compare(a.Name, b.Name) })
}

func (w *world) held(owner Owner) []netip.Addr {
	return slices.DeleteFunc(w.table().Held(owner), func(address netip.Addr) bool {
		vip := w.vips[address]
		return vip.Claims[vip.claimOf(owner)].UID == ""
	})
}

func (w *world) check(t *rapid.T, owner Owner, plan Plan) {
	request := w.services[owner]
	held := w.held(owner)
	if want := slices.SortedFunc(slices.Values(plan.Addresses), netip.Addr.Compare); !slices.Equal(held, want) {
		t.Fatalf("%s holds %v, but the plan assigns %v", owner, held, want)
	}
	// One slot for each family or requested address, in order.
	slots := slotsOf(&request)
	next := 0
	for _, address := range plan.Addresses {
		i := slices.IndexFunc(slots[next:], func(at slot) bool { return at.family == FamilyOf(address) })
		if i < 0 {
			t.Fatalf("addresses of %s = %v, not in the order of %v", owner, plan.Addresses, slots)
		}
		next += i + 1
	}
	if plan.Satisfied && request.RequireAll && len(plan.Addresses) != len(slots) {
		t.Fatalf("%s is satisfied with %v for slots %v", owner, plan.Addresses, slots)
	}
	lacks := func(address netip.Addr) bool { return !slices.Contains(plan.Addresses, address) }
	if plan.Satisfied && slices.ContainsFunc(request.Addresses, lacks) {
		t.Fatalf("%s is satisfied with %v, but requested %v", owner, plan.Addresses, request.Addresses)
	}
	if !plan.Satisfied && len(plan.Refusals) == 0 {
		t.Fatalf("%s is not satisfied, but has no refusal", owner)
	}
	if len(plan.Addresses) < len(slots) && !plan.Waiting {
		t.Fatalf("%s has %v for slots %v, but does not wait", owner, plan.Addresses, slots)
	}
	w.checkGrants(t, request, plan)
}

func (w *world) checkGrants(t *rapid.T, request Request, plan Plan) {
	for _, grant := range plan.Create {
		pool := w.pools[slices.Index(poolNames, grant.Pool)]
		isRequested := slices.Contains(request.Addresses, grant.Address)
		switch {
		case !pool.Addresses.Contains(grant.Address), w.reserved[grant.Pool].Contains(grant.Address):
			t.Fatalf("%s is not in pool %s", grant.Address, grant.Pool)
		case !slices.Contains(request.Eligible, grant.Pool):
			t.Fatalf("%s is from pool %s, which is not eligible", grant.Address, grant.Pool)
		case request.Pool != "" && request.Pool != grant.Pool:
			t.Fatalf("%s is from pool %s, but %s was requested", grant.Address, grant.Pool, request.Pool)
		case !isRequested && request.Pool == "" && !pool.AutoAssign:
			t.Fatalf("%s is from pool %s, which is neither requested nor auto-assigned", grant.Address, grant.Pool)
		}
	}
}

func TestNeverTwoOwnersAndSticky(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			owner := rapid.SampledFrom(w.owners()).Draw(t, "service")
			before, ports := w.held(owner), w.ports(owner)
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				w.services[owner] = drawRequest(t, owner)
			case 1:
				w.pools, w.reserved = drawPools(t)
			case 2:
				w.carryOut(t, owner, Plan{Release: before})
				continue
			}
			spent := w.spent(owner.Namespace)
			plan := w.reconcile(t, owner)
			w.check(t, owner, plan)
			w.checkQuota(t, owner, spent, plan)
			w.checkOwners(t)
			w.checkSticky(t, owner, before, plan)
			w.checkPorts(t, owner, ports)
			if len(plan.Release) > 0 && slices.ContainsFunc(plan.Refusals, func(r Refusal) bool { return r.Reason == QuotaExceeded }) {
				// Released addresses can be assigned again.
				continue
			}
			if again := Make(w.table(), w.pools, w.services[owner]); len(again.Create)+len(again.Bind)+len(again.Release) > 0 {
				t.Fatalf("the plan of %s is not stable: %+v after %+v", owner, again, plan)
			}
		}
	})
}

func (w *world) checkOwners(t *rapid.T) {
	for _, vip := range w.vips {
		listed := map[Port]Owner{}
		for _, claim := range vip.Claims {
			for _, port := range claim.Ports {
				if owner, taken := listed[port]; taken {
					t.Fatalf("port %s of %s is owned by %s and %s", port, vip.Address, owner, claim.Owner)
				}
				listed[port] = claim.Owner
			}
		}
	}
}

func (w *world) ports(owner Owner) map[netip.Addr][]Port {
	ports := map[netip.Addr][]Port{}
	for _, address := range w.held(owner) {
		vip := w.vips[address]
		ports[address] = vip.Claims[vip.claimOf(owner)].Ports
	}
	return ports
}

// checkPorts checks that a Service keeps its ports and has all others that are free on its addresses.
func (w *world) checkPorts(t *rapid.T, owner Owner, before map[netip.Addr][]Port) {
	request := w.services[owner]
	for address, now := range w.ports(owner) {
		vip := w.vips[address]
		if len(vip.Claims) == 1 && request.SharingKey == "" {
			if len(now) > 0 {
				t.Fatalf("%s uses %s exclusively, but lists ports %v", owner, address, now)
			}
			continue
		}
		for _, port := range request.Ports {
			others := slices.ContainsFunc(vip.Claims, func(c Claim) bool { return c.Owner != owner && slices.Contains(c.Ports, port) })
			has := slices.Contains(now, port)
			if has == others || slices.Contains(before[address], port) && !has {
				t.Fatalf("port %s of %s: owned by %s = %v, by others = %v, before: %v", port, address, owner, has, others, before[address])
			}
		}
		if slices.ContainsFunc(now, func(port Port) bool { return !slices.Contains(request.Ports, port) }) {
			t.Fatalf("%s lists ports %v, but requests %v", owner, now, request.Ports)
		}
	}
}

// With manual claims that have neither key nor ports, the Service keeps its ports, in any order of passes.
func TestClaimsByHand(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{services: map[Owner]Request{}, vips: map[netip.Addr]VIP{}}
		address := addressAt(0)
		hand := VIP{Address: address}
		count := rapid.IntRange(2, 4).Draw(t, "services")
		for i := range count {
			owner := Owner{Namespace: fmt.Sprintf("ns%d", i%2), Name: fmt.Sprintf("s%d", i), UID: fmt.Sprint(i)}
			w.services[owner] = Request{Owner: owner, Families: []Family{FamilyOf(address)}, RequireAll: true, Ports: drawPorts(t)}
			claim := Claim{Owner: owner}
			if i > 0 && rapid.Bool().Draw(t, "without UID") {
				claim.UID = ""
			}
			hand.Claims = append(hand.Claims, claim)
		}
		w.vips[address] = hand
		first := w.owners()[0]
		for range 3 {
			for _, owner := range rapid.Permutation(w.owners()).Draw(t, "order") {
				before := w.ports(owner)
				plan := w.reconcile(t, owner)
				w.checkOwners(t)
				if len(before[address]) > 0 {
					w.checkPorts(t, owner, before)
				}
				if !slices.Equal(plan.Addresses, []netip.Addr{address}) {
					t.Fatalf("%s has %v, want only the existing address", owner, plan.Addresses)
				}
			}
		}
		for _, owner := range w.owners() {
			w.checkPorts(t, owner, nil)
		}
		if got := w.ports(first)[address]; !slices.Equal(got, w.services[first].Ports) {
			t.Fatalf("%s was first, but owns %v instead of %v", first, got, w.services[first].Ports)
		}
	})
}

// checkSticky checks that a Service without requests keeps its addresses; of several requested before, one.
func (w *world) checkSticky(t *rapid.T, owner Owner, before []netip.Addr, plan Plan) {
	request := w.services[owner]
	for _, address := range before {
		kept := slices.Contains(plan.Addresses, address)
		wanted := slices.Contains(request.Families, FamilyOf(address))
		isRequested := request.Pool != "" || slices.ContainsFunc(request.Addresses, func(a netip.Addr) bool { return FamilyOf(a) == FamilyOf(address) })
		alone := !slices.ContainsFunc(before, func(a netip.Addr) bool { return a != address && FamilyOf(a) == FamilyOf(address) })
		if wanted && !isRequested && !kept && alone {
			t.Fatalf("%s lost %s: %+v", owner, address, plan)
		}
		if wanted && !slices.ContainsFunc(plan.Addresses, func(a netip.Addr) bool { return FamilyOf(a) == FamilyOf(address) }) {
			t.Fatalf("%s lost its %s address: %+v", owner, FamilyOf(address), plan)
		}
	}
}

// A pool serves exactly as many Services as it has free addresses.
func TestCapacityIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		family := rapid.SampledFrom([]Family{IPv4, IPv6}).Draw(t, "family")
		ranges := drawRanges(t, "ranges")
		pool := Pool{Name: "p", AutoAssign: true, Addresses: without(ranges, drawRanges(t, "reserved")...)}
		table := NewTable()
		free := 0
		for offset := range 64 {
			address := addressAt(offset)
			if FamilyOf(address) != family || !pool.Addresses.Contains(address) {
				continue
			}
			if rapid.Bool().Draw(t, "taken") {
				table.Put(vip(address.String(), "", other))
			} else {
				free++
			}
		}
		for i := range 70 {
			owner := Owner{Namespace: "ns", Name: fmt.Sprint(i), UID: fmt.Sprint(i)}
			plan := Make(table, []Pool{pool}, Request{Owner: owner, Families: []Family{family}, RequireAll: true, Eligible: []string{"p"}})
			if got := len(plan.Create) == 1; got != (i < free) {
				t.Fatalf("Service %d with %d free addresses: %+v", i, free, plan)
			}
			for _, write := range plan.Create {
				table.Put(VIP{Address: write.Address, Pool: "p", Claims: []Claim{write.Claim}})
			}
		}
	})
}

func sameWrite(a, b Write) bool {
	return a.Address == b.Address && a.Pool == b.Pool && a.Claim.equal(b.Claim)
}

// A plan does not depend on the order of maps or slices.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for _, owner := range w.owners() {
			first := Make(w.table(), w.pools, w.services[owner])
			w.pools = rapid.Permutation(w.pools).Draw(t, "pools")
			second := Make(w.table(), w.pools, w.services[owner])
			if !slices.EqualFunc(first.Create, second.Create, sameWrite) || !slices.EqualFunc(first.Bind, second.Bind, sameWrite) || !slices.Equal(first.Addresses, second.Addresses) {
				t.Fatalf("%+v and %+v", first, second)
			}
			w.pools = slices.SortedFunc(slices.Values(w.pools), func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
			w.reconcile(t, owner)
		}
	})
}

func TestPriority(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		owner := w.owners()[0]
		request := w.services[owner]
		request.Families, request.Addresses, request.Pool, request.SharingKey, request.Quotas = []Family{IPv4}, nil, "", "", nil
		table := w.table()
		plan := Make(table, w.pools, request)
		for _, pool := range w.pools {
			_, free := pool.Addresses.firstFree(lowest(IPv4), past(table.used))
			if !free || !pool.AutoAssign || !slices.Contains(request.Eligible, pool.Name) {
				continue
			}
			if len(plan.Create) != 1 {
				t.Fatalf("pool %s has a free address, but none was assigned: %+v", pool.Name, plan)
			}
			chosen := w.pools[slices.Index(poolNames, plan.Create[0].Pool)]
			if chosen.Priority < pool.Priority || chosen.Priority == pool.Priority && chosen.Name > pool.Name {
				t.Fatalf("pool %s was preferred to %s", pool.Name, chosen.Name)
			}
		}
	})
}

func TestHugePoolIsCheap(t *testing.T) {
	pool := Pool{Name: "p", AutoAssign: true, Addresses: without(
		[]netipx.IPRange{netipx.RangeOfPrefix(netip.MustParsePrefix("2001:db8::/32"))},
		netipx.RangeOfPrefix(netip.MustParsePrefix("2001:db8::/96")))}
	table := NewTable()
	request := Request{Families: []Family{IPv6}, RequireAll: true, Eligible: []string{"p"}}
	for i := range 200 {
		request.Owner = Owner{Namespace: "ns", Name: fmt.Sprint(i), UID: fmt.Sprint(i)}
		steps := 0
		pool.Addresses.firstFree(lowest(IPv6), func(address netip.Addr) netip.Addr { steps++; return table.taken.nextUnused(address) })
		if steps > 1 {
			t.Fatalf("%d steps to find a free address with %d used ones", steps, i)
		}
		plan := Make(table, []Pool{pool}, request)
		table.Put(VIP{Address: plan.Create[0].Address, Pool: "p", Claims: []Claim{plan.Create[0].Claim}})
	}
}
