// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// lookAtAll is join by a scan: the address, or why the first is refused; full if only room is missing.
func lookAtAll(p *planner, family Family) (address netip.Addr, why string, full bool) {
	for _, address := range keyedAddresses(p) {
		pool, mayHave := p.poolOf(address)
		isOwn := p.table.vips[address].heldBy(p.request.Owner)
		elsewhere := p.request.Pool != "" && (!mayHave || p.isOfOtherPool(address))
		if FamilyOf(address) != family || isOwn || elsewhere || !concerns(p, address, pool) {
			continue
		}
		reason, text := AddressNotInPool, p.notInPool(address)
		if mayHave {
			if reason, text = p.refuseShare(address, pool); text == "" {
				reason, text = QuotaExceeded, p.overQuota(map[slot]grant{firstOf(family): {address, pool.Name}})
			}
		}
		if text == "" {
			return address, "", false
		}
		if why == "" {
			why, full = text, reason == AddressFull || reason == PortConflict
		}
	}
	return netip.Addr{}, why, full
}

func keyedAddresses(p *planner) (addresses []netip.Addr) {
	for address, vip := range p.table.vips {
		if slices.ContainsFunc(vip.Claims, func(c Claim) bool { return c.SharingKey == p.request.SharingKey }) {
			addresses = append(addresses, address)
		}
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return addresses
}

func concerns(p *planner, address netip.Addr, pool Pool) bool {
	return slices.ContainsFunc(p.table.vips[address].Claims, func(c Claim) bool {
		return c.SharingKey == p.request.SharingKey && (pool.SharedByAll || c.Namespace == p.request.Owner.Namespace)
	})
}

// The index of sharing keys yields the same addresses as a scan, and only the lowest other address is
// reported.
func TestSharersByIndex(t *testing.T) {
	joined, refused, notes := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		table := w.table()
		for range rapid.IntRange(30, 90).Draw(t, "steps") {
			owner := rapid.SampledFrom(w.owners()).Draw(t, "service")
			if rapid.IntRange(0, 3).Draw(t, "changes") == 0 {
				w.services[owner] = drawRequest(t, owner)
			}
			request := w.services[owner]
			p := newPlanner(table, w.pools, request)
			for _, family := range request.Families {
				if request.SharingKey == "" {
					continue
				}
				want, why, full := lookAtAll(p, family)
				p.refusals = nil
				found := p.join(family)
				if full {
					p.refusals, found = append(p.refusals, p.full[family]), !found
				}
				if found != (want.IsValid() || why != "") || p.granted[firstOf(family)].address != want {
					t.Fatalf("%+v joins %v (%t), want %s", request, p.granted[firstOf(family)], found, want)
				}
				if message := fmt.Sprintf("the address with the sharing key %q is not available: %s", request.SharingKey, why); why != "" &&
					!want.IsValid() && p.refusals[0].Message != message {
					t.Fatalf("refusal of %+v = %q, want %q", request, p.refusals[0].Message, message)
				}
				if want.IsValid() {
					joined++
				} else if why != "" {
					refused++
				}
			}
			plan := Make(table, w.pools, request)
			notes += checkOthers(t, table, w.pools, request, plan)
			w.carryOut(t, owner, plan)
			for address := range w.vips {
				table.Put(w.vips[address])
			}
			for _, address := range plan.Release {
				if _, stays := w.vips[address]; !stays {
					table.Delete(address)
				}
			}
		}
	})
	if joined == 0 || refused == 0 || notes == 0 {
		t.Errorf("%d joined, %d refused, %d notes: the test case is invalid", joined, refused, notes)
	}
}

func checkOthers(t *rapid.T, table *Table, pools []Pool, request Request, plan Plan) (notes int) {
	if request.SharingKey == "" {
		return 0
	}
	p := newPlanner(table, pools, request)
	p.grantRequested()
	p.grantMissing()
	for _, refusal := range plan.Refusals {
		if refusal.Reason == OtherAddress {
			notes++
		}
	}
	want := map[Family]bool{}
	for _, address := range keyedAddresses(p) {
		family := FamilyOf(address)
		kept, held := p.held[firstOf(family)]
		_, moved := p.granted[firstOf(family)]
		pool, mayHave := p.poolOf(address)
		if !held || moved && slices.Contains(plan.Addresses, p.granted[firstOf(family)].address) || kept == address || p.hasRequested(family) ||
			len(p.table.vips[kept].Claims) > 1 ||
			!mayHave || p.isOfOtherPool(address) || !concerns(p, address, pool) {
			continue
		}
		if _, why := p.refuseShare(address, pool); why == "" {
			want[family] = true
		}
	}
	if notes != len(want) {
		t.Fatalf("%+v: got %+v, want %v", request, plan.Refusals, want)
	}
	return notes
}

// manyKeyed returns VIPs with the same key and port, by namespace.
func manyKeyed(count int, pool string, namespace func(i int) string) *Table {
	table := NewTable()
	address := netip.MustParseAddr("198.18.0.0")
	for i := range count {
		owner := Owner{Namespace: namespace(i), Name: fmt.Sprint("s", i), UID: fmt.Sprint(i)}
		table.Put(VIP{Address: address, Pool: pool, Claims: []Claim{keyed(owner, "web", tcp80)}})
		address = address.Next()
	}
	return table
}

func namespaceEach(i int) string { return fmt.Sprint("ns", i) }
func oneNamespace(int) string    { return "shop" }

var keyedByMany = []struct {
	name      string
	namespace func(int) string
	shared    bool
	port      Port
}{
	{"one Service per namespace", namespaceEach, false, tcp80},
	{"one namespace, with the port", oneNamespace, false, tcp80},
	{"one namespace, to join a VIP", oneNamespace, false, tcp53},
	{"one Service per namespace, shared by all, with the port", namespaceEach, true, tcp80},
}

// planAmong plans a Service whose sharing key many VIPs have, with and without an address.
func planAmong(vips int, namespace func(int) string, shared bool, port Port) func() {
	pools := []Pool{{Name: "p", AutoAssign: true, Addresses: setOf(rangeOf("198.18.0.0", "198.18.255.255")), SharedByAll: shared}}
	table := manyKeyed(vips, "p", namespace)
	owner := Owner{Namespace: "shop", Name: "new", UID: "new"}
	request := Request{
		Owner: owner, Families: single, RequireAll: true, Eligible: []string{"p"}, SharingKey: "web", Ports: []Port{port},
	}
	held := netip.MustParseAddr("198.18.200.0")
	return func() {
		Make(table, pools, request)
		table.Put(VIP{Address: held, Pool: "p", Claims: []Claim{{Owner: owner}}})
		Make(table, pools, request)
		table.Delete(held)
	}
}

// The cost of a plan does not grow with the number of VIPs of its key.
func TestSharersAmongMany(t *testing.T) {
	for _, test := range keyedByMany {
		few := testing.AllocsPerRun(3, planAmong(10, test.namespace, test.shared, test.port))
		if many := testing.AllocsPerRun(3, planAmong(5_000, test.namespace, test.shared, test.port)); many > few+10 {
			t.Errorf("%s: %v allocations with 10 VIPs, %v with 5,000", test.name, few, many)
		}
	}
}
