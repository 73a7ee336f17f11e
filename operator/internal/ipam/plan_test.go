// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"
	"testing"
)

func addresses(texts ...string) []netip.Addr {
	var parsed []netip.Addr
	for _, text := range texts {
		parsed = append(parsed, netip.MustParseAddr(text))
	}
	return parsed
}

var (
	web   = Owner{Namespace: "shop", Name: "web", UID: "1"}
	other = Owner{Namespace: "shop", Name: "other", UID: "2"}

	poolA    = Pool{Name: "a", AutoAssign: true, Addresses: setOf(rangeOf("203.0.113.1", "203.0.113.2"))}
	poolB    = Pool{Name: "b", AutoAssign: true, Addresses: setOf(rangeOf("2001:db8::1", "2001:db8::2"))}
	poolDual = Pool{Name: "dual", AutoAssign: true, Addresses: setOf(rangeOf("198.51.100.1", "198.51.100.1"), rangeOf("2001:db8:1::1", "2001:db8:1::1"))}
	poolHigh = Pool{Name: "z-high", AutoAssign: true, Priority: 10, Addresses: setOf(rangeOf("198.51.100.129", "198.51.100.130"))}
	poolKept = Pool{Name: "kept", Addresses: setOf(rangeOf("198.51.100.200", "198.51.100.201"))}

	allPools = []Pool{poolA, poolB, poolDual, poolHigh, poolKept}
	names    = []string{"a", "b", "dual", "z-high", "kept"}
	single   = []Family{IPv4}
	dual     = []Family{IPv4, IPv6}
)

func vip(address, pool string, owners ...Owner) VIP {
	v := VIP{Address: netip.MustParseAddr(address), Pool: pool}
	for _, owner := range owners {
		v.Claims = append(v.Claims, Claim{Owner: owner})
	}
	return v
}

type planCase struct {
	name    string
	vips    []VIP
	pools   []Pool
	request Request

	addresses, create, bind, release []string
	refusals                         []Reason
	unsatisfied                      bool
}

func TestMake(t *testing.T) {
	for _, group := range [][]planCase{newAddresses, keptAddresses, requestedAddresses} {
		for _, test := range group {
			t.Run(test.name, func(t *testing.T) { checkPlan(t, test) })
		}
	}
}

func checkPlan(t *testing.T, test planCase) {
	test.request.Owner = web
	if test.request.Eligible == nil {
		test.request.Eligible = names
	}
	if test.pools == nil {
		test.pools = allPools
	}
	plan := Make(NewTable(test.vips...), test.pools, test.request)
	targets := func(writes []Write) []netip.Addr {
		var targets []netip.Addr
		for _, write := range writes {
			if write.Claim.Owner != web {
				t.Errorf("a claim of %s was written to %s", write.Claim.Owner, write.Address)
			}
			targets = append(targets, write.Address)
		}
		return targets
	}
	var reasons []Reason
	for _, refusal := range plan.Refusals {
		reasons = append(reasons, refusal.Reason)
	}
	compare(t, "Addresses", plan.Addresses, addresses(test.addresses...))
	compare(t, "Create", targets(plan.Create), addresses(test.create...))
	compare(t, "Bind", targets(plan.Bind), addresses(test.bind...))
	compare(t, "Release", plan.Release, addresses(test.release...))
	compare(t, "reasons", reasons, test.refusals)
	if plan.Satisfied == test.unsatisfied {
		t.Errorf("Satisfied = %v; refusals: %v", plan.Satisfied, plan.Refusals)
	}
}

func compare[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

var newAddresses = []planCase{
	{
		name:    "the pool of the highest priority",
		request: Request{Families: single, RequireAll: true}, addresses: []string{"198.51.100.129"}, create: []string{"198.51.100.129"},
	},
	{
		name:    "then by name",
		vips:    []VIP{vip("198.51.100.129", "z-high", other), vip("198.51.100.130", "z-high", other)},
		request: Request{Families: single, RequireAll: true}, addresses: []string{"203.0.113.1"}, create: []string{"203.0.113.1"},
	},
	{
		name: "the pool of selected namespaces at equal priority",
		pools: []Pool{poolA, {
			Name: "z-selected", AutoAssign: true, Selective: true, Addresses: setOf(rangeOf("192.0.2.1", "192.0.2.1")),
		}},
		request:   Request{Families: single, RequireAll: true, Eligible: []string{"a", "z-selected"}},
		addresses: []string{"192.0.2.1"}, create: []string{"192.0.2.1"},
	},
	{
		name:    "one pool for both families",
		request: Request{Families: dual, RequireAll: true}, addresses: []string{"198.51.100.1", "2001:db8:1::1"},
		create: []string{"198.51.100.1", "2001:db8:1::1"},
	},
	{
		name:    "two pools when no one has both",
		vips:    []VIP{vip("2001:db8:1::1", "dual", other)},
		request: Request{Families: dual, RequireAll: true}, addresses: []string{"198.51.100.129", "2001:db8::1"},
		create: []string{"198.51.100.129", "2001:db8::1"},
	},
	{
		name:    "in the order of the families",
		request: Request{Families: []Family{IPv6, IPv4}, RequireAll: true}, addresses: []string{"2001:db8:1::1", "198.51.100.1"},
		create: []string{"2001:db8:1::1", "198.51.100.1"},
	},
	{
		name:    "both or none",
		request: Request{Families: dual, RequireAll: true, Eligible: []string{"a"}}, refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "one of two will do",
		request: Request{Families: dual, Eligible: []string{"a"}}, addresses: []string{"203.0.113.1"}, create: []string{"203.0.113.1"},
	},
	{
		name:    "one of two will do, and the exhaustion of the other is told",
		vips:    []VIP{vip("2001:db8::1", "b", other), vip("2001:db8::2", "b", other)},
		request: Request{Families: dual, Eligible: []string{"a", "b"}}, addresses: []string{"203.0.113.1"}, create: []string{"203.0.113.1"},
		refusals: []Reason{PoolExhausted},
	},
	{
		name:    "neither of two",
		request: Request{Families: dual, Eligible: []string{}}, refusals: []Reason{NoMatchingPool, NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "exhausted",
		vips:    []VIP{vip("203.0.113.1", "a", other), vip("203.0.113.2", "a")},
		request: Request{Families: single, RequireAll: true, Eligible: []string{"a"}}, refusals: []Reason{PoolExhausted}, unsatisfied: true,
	},
	{
		name:    "a pool that must be asked for",
		request: Request{Families: single, RequireAll: true, Eligible: []string{"kept"}}, refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "the pool that is asked for",
		request: Request{Families: single, RequireAll: true, Pool: "kept"}, addresses: []string{"198.51.100.200"}, create: []string{"198.51.100.200"},
	},
	{
		name:    "a pool that does not select the Service",
		request: Request{Families: single, RequireAll: true, Pool: "a", Eligible: []string{"kept"}}, refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "a pool that does not exist",
		request: Request{Families: single, RequireAll: true, Pool: "none"}, refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "what the status tells, when it is free",
		request: Request{Families: single, RequireAll: true, Hints: addresses("203.0.113.2")}, addresses: []string{"203.0.113.2"},
		create: []string{"203.0.113.2"},
	},
	{
		name:    "what the status tells, when it is not free",
		vips:    []VIP{vip("203.0.113.2", "a", other)},
		request: Request{Families: single, RequireAll: true, Hints: addresses("203.0.113.2")}, addresses: []string{"198.51.100.129"},
		create: []string{"198.51.100.129"},
	},
}

var keptAddresses = []planCase{
	{
		name:    "kept though a better pool has come",
		vips:    []VIP{vip("203.0.113.2", "a", web)},
		request: Request{Families: single, RequireAll: true}, addresses: []string{"203.0.113.2"},
	},
	{
		name:    "kept though the pool is gone",
		vips:    []VIP{vip("203.0.113.77", "gone", web)},
		request: Request{Families: single, RequireAll: true, Eligible: []string{}}, addresses: []string{"203.0.113.77"},
	},
	{
		name:    "kept, and the second family in the same pool",
		vips:    []VIP{vip("198.51.100.1", "dual", web)},
		request: Request{Families: dual, RequireAll: true}, addresses: []string{"198.51.100.1", "2001:db8:1::1"}, create: []string{"2001:db8:1::1"},
	},
	{
		name:    "kept while the second family cannot be had",
		vips:    []VIP{vip("203.0.113.1", "a", web)},
		request: Request{Families: dual, RequireAll: true, Eligible: []string{"a"}}, addresses: []string{"203.0.113.1"},
		refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "a family that is not wanted any more is released",
		vips:    []VIP{vip("203.0.113.1", "a", web), vip("2001:db8::1", "b", web)},
		request: Request{Families: single, RequireAll: true}, addresses: []string{"203.0.113.1"}, release: []string{"2001:db8::1"},
	},
	{
		name:    "of two in a family the one in the status stays",
		vips:    []VIP{vip("203.0.113.1", "a", web), vip("203.0.113.2", "a", web)},
		request: Request{Families: single, RequireAll: true, Hints: addresses("203.0.113.2")}, addresses: []string{"203.0.113.2"},
		release: []string{"203.0.113.1"},
	},
	{
		name:    "a claim made manually, of any address, is taken up",
		vips:    []VIP{vip("203.0.113.99", "", Owner{Namespace: "shop", Name: "web"})},
		request: Request{Families: single, RequireAll: true}, addresses: []string{"203.0.113.99"}, bind: []string{"203.0.113.99"},
	},
	{
		name:    "a claim made manually moves nothing that is assigned, and stays",
		vips:    []VIP{vip("203.0.113.1", "", Owner{Namespace: "shop", Name: "web"}), vip("203.0.113.2", "a", web)},
		request: Request{Families: single, RequireAll: true}, addresses: []string{"203.0.113.2"},
	},
	{
		name:    "the claim of an earlier Service of the name is not ours",
		vips:    []VIP{vip("203.0.113.1", "a", Owner{Namespace: "shop", Name: "web", UID: "0"})},
		request: Request{Families: single, RequireAll: true, Eligible: []string{"a"}}, addresses: []string{"203.0.113.2"}, create: []string{"203.0.113.2"},
	},
	{
		name:    "moved to the pool that is asked for",
		vips:    []VIP{vip("203.0.113.1", "a", web)},
		request: Request{Families: single, RequireAll: true, Pool: "kept"}, addresses: []string{"198.51.100.200"},
		create: []string{"198.51.100.200"}, release: []string{"203.0.113.1"},
	},
	{
		name:    "not moved when the pool that is asked for has nothing",
		vips:    []VIP{vip("203.0.113.1", "a", web)},
		request: Request{Families: single, RequireAll: true, Pool: "b"}, addresses: []string{"203.0.113.1"},
		refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "kept when the pool that is asked for does not exist, and told",
		vips:    []VIP{vip("203.0.113.1", "a", web)},
		request: Request{Families: single, RequireAll: true, Pool: "none"}, addresses: []string{"203.0.113.1"},
		refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "kept, also where one family would do, when the pool that is asked for does not exist",
		vips:    []VIP{vip("203.0.113.1", "a", web)},
		request: Request{Families: dual, Pool: "none"}, addresses: []string{"203.0.113.1"},
		refusals: []Reason{NoMatchingPool, NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "reserved manually outside of pools, when the pool that is asked for does not exist",
		vips:    []VIP{vip("203.0.113.99", "", web)},
		request: Request{Families: single, RequireAll: true, Pool: "none"}, addresses: []string{"203.0.113.99"},
		refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "kept when the pool that is asked for is full",
		vips:    []VIP{vip("203.0.113.1", "a", web), vip("198.51.100.200", "kept", other), vip("198.51.100.201", "kept", other)},
		request: Request{Families: single, RequireAll: true, Pool: "kept"}, addresses: []string{"203.0.113.1"},
		refusals: []Reason{PoolExhausted}, unsatisfied: true,
	},
}

var requestedAddresses = []planCase{
	{
		name:    "several of a family, in the order in which they are asked for",
		request: Request{Families: []Family{IPv6, IPv4}, RequireAll: true, Addresses: addresses("203.0.113.2", "198.51.100.200")},

		addresses: []string{"2001:db8::1", "203.0.113.2", "198.51.100.200"}, create: []string{"2001:db8::1", "203.0.113.2", "198.51.100.200"},
	},
	{
		name:    "one of several is in use: all or nothing",
		vips:    []VIP{vip("203.0.113.1", "a", other)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.1", "203.0.113.2")},

		refusals: []Reason{AddressInUse}, unsatisfied: true,
	},
	{
		name:    "one more, and what is there stays",
		vips:    []VIP{vip("203.0.113.2", "a", web)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.1", "203.0.113.2")},

		addresses: []string{"203.0.113.1", "203.0.113.2"}, create: []string{"203.0.113.1"},
	},
	{
		name:    "one of several cannot be had: another one is kept in its place",
		vips:    []VIP{vip("203.0.113.1", "a", other), vip("198.51.100.129", "z-high", web)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2", "203.0.113.1")},

		addresses: []string{"203.0.113.2", "198.51.100.129"}, create: []string{"203.0.113.2"}, refusals: []Reason{AddressInUse}, unsatisfied: true,
	},
	{
		name:    "several that are not asked for any more: one is kept",
		vips:    []VIP{vip("203.0.113.1", "a", web), vip("203.0.113.2", "a", web)},
		request: Request{Families: single, RequireAll: true, Hints: addresses("203.0.113.2")},

		addresses: []string{"203.0.113.2"}, release: []string{"203.0.113.1"},
	},
	{
		name:    "given",
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2")}, addresses: []string{"203.0.113.2"}, create: []string{"203.0.113.2"},
	},
	{
		name:    "given from a pool that must be asked for, the other family as usual",
		request: Request{Families: dual, RequireAll: true, Addresses: addresses("198.51.100.201")}, addresses: []string{"198.51.100.201", "2001:db8::1"},
		create: []string{"198.51.100.201", "2001:db8::1"},
	},
	{
		name:    "reserved manually",
		vips:    []VIP{vip("203.0.113.2", "")},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2")}, addresses: []string{"203.0.113.2"}, bind: []string{"203.0.113.2"},
	},
	{
		name:    "reserved for another",
		vips:    []VIP{vip("203.0.113.2", "a", Owner{Namespace: "shop", Name: "other"})},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2")}, refusals: []Reason{AddressInUse}, unsatisfied: true,
	},
	{
		name:    "held, but of another pool than the one that is asked for",
		vips:    []VIP{vip("203.0.113.2", "a", web)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2"), Pool: "kept"}, addresses: []string{"203.0.113.2"},
		refusals: []Reason{AddressNotInPool}, unsatisfied: true,
	},
	{
		name:    "in use",
		vips:    []VIP{vip("203.0.113.2", "a", other)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2")}, refusals: []Reason{AddressInUse}, unsatisfied: true,
	},
	{
		name:    "of no pool",
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.50")}, refusals: []Reason{AddressNotInPool}, unsatisfied: true,
	},
	{
		name:    "of a pool that does not select the Service, though a VIP is reserved",
		vips:    []VIP{vip("203.0.113.2", "a")},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2"), Eligible: []string{"kept"}},

		refusals: []Reason{AddressNotInPool}, unsatisfied: true,
	},
	{
		name:    "of another pool than the one that is asked for",
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2"), Pool: "kept"},

		refusals: []Reason{AddressNotInPool}, unsatisfied: true,
	},
	{
		name:    "of a family that the Service does not have",
		request: Request{Families: single, RequireAll: true, Addresses: addresses("2001:db8::1")}, addresses: []string{"198.51.100.129"},
		create: []string{"198.51.100.129"}, refusals: []Reason{NotRequested}, unsatisfied: true,
	},
	{
		name:    "held already, of a pool that is gone",
		vips:    []VIP{vip("203.0.113.77", "gone", web)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.77")}, addresses: []string{"203.0.113.77"},
	},
	{
		name:    "moved to",
		vips:    []VIP{vip("203.0.113.1", "a", web)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2")}, addresses: []string{"203.0.113.2"},
		create: []string{"203.0.113.2"}, release: []string{"203.0.113.1"},
	},
	{
		name:    "not moved to when in use",
		vips:    []VIP{vip("203.0.113.1", "a", web), vip("203.0.113.2", "a", other)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2")}, addresses: []string{"203.0.113.1"},
		refusals: []Reason{AddressInUse}, unsatisfied: true,
	},
	{
		name:    "refused for one family, the other is served when one will do",
		request: Request{Families: dual, Addresses: addresses("203.0.113.50")}, addresses: []string{"2001:db8::1"},
		create: []string{"2001:db8::1"}, refusals: []Reason{AddressNotInPool}, unsatisfied: true,
	},
}
