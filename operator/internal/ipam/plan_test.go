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
		name:    "pools of equal priority by name",
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
		name:    "two pools if none has both families",
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
		name:    "one of two families is sufficient",
		request: Request{Families: dual, Eligible: []string{"a"}}, addresses: []string{"203.0.113.1"}, create: []string{"203.0.113.1"},
	},
	{
		name:    "one of two families is sufficient, exhaustion of the other is reported",
		vips:    []VIP{vip("2001:db8::1", "b", other), vip("2001:db8::2", "b", other)},
		request: Request{Families: dual, Eligible: []string{"a", "b"}}, addresses: []string{"203.0.113.1"}, create: []string{"203.0.113.1"},
		refusals: []Reason{PoolExhausted},
	},
	{
		name:    "no family available",
		request: Request{Families: dual, Eligible: []string{}}, refusals: []Reason{NoMatchingPool, NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "exhausted",
		vips:    []VIP{vip("203.0.113.1", "a", other), vip("203.0.113.2", "a")},
		request: Request{Families: single, RequireAll: true, Eligible: []string{"a"}}, refusals: []Reason{PoolExhausted}, unsatisfied: true,
	},
	{
		name:    "pool without auto-assignment",
		request: Request{Families: single, RequireAll: true, Eligible: []string{"kept"}}, refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "requested pool",
		request: Request{Families: single, RequireAll: true, Pool: "kept"}, addresses: []string{"198.51.100.200"}, create: []string{"198.51.100.200"},
	},
	{
		name:    "a pool that does not select the Service",
		request: Request{Families: single, RequireAll: true, Pool: "a", Eligible: []string{"kept"}}, refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "unknown pool",
		request: Request{Families: single, RequireAll: true, Pool: "none"}, refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "address in the status, free",
		request: Request{Families: single, RequireAll: true, Hints: addresses("203.0.113.2")}, addresses: []string{"203.0.113.2"},
		create: []string{"203.0.113.2"},
	},
	{
		name:    "address in the status, in use",
		vips:    []VIP{vip("203.0.113.2", "a", other)},
		request: Request{Families: single, RequireAll: true, Hints: addresses("203.0.113.2")}, addresses: []string{"198.51.100.129"},
		create: []string{"198.51.100.129"},
	},
}

var keptAddresses = []planCase{
	{
		name:    "kept although a better pool exists",
		vips:    []VIP{vip("203.0.113.2", "a", web)},
		request: Request{Families: single, RequireAll: true}, addresses: []string{"203.0.113.2"},
	},
	{
		name:    "kept although the pool was deleted",
		vips:    []VIP{vip("203.0.113.77", "gone", web)},
		request: Request{Families: single, RequireAll: true, Eligible: []string{}}, addresses: []string{"203.0.113.77"},
	},
	{
		name:    "kept, and the second family in the same pool",
		vips:    []VIP{vip("198.51.100.1", "dual", web)},
		request: Request{Families: dual, RequireAll: true}, addresses: []string{"198.51.100.1", "2001:db8:1::1"}, create: []string{"2001:db8:1::1"},
	},
	{
		name:    "kept while the second family is not available",
		vips:    []VIP{vip("203.0.113.1", "a", web)},
		request: Request{Families: dual, RequireAll: true, Eligible: []string{"a"}}, addresses: []string{"203.0.113.1"},
		refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "address of a removed family is released",
		vips:    []VIP{vip("203.0.113.1", "a", web), vip("2001:db8::1", "b", web)},
		request: Request{Families: single, RequireAll: true}, addresses: []string{"203.0.113.1"}, release: []string{"2001:db8::1"},
	},
	{
		name:    "of two addresses in a family, the one in the status is kept",
		vips:    []VIP{vip("203.0.113.1", "a", web), vip("203.0.113.2", "a", web)},
		request: Request{Families: single, RequireAll: true, Hints: addresses("203.0.113.2")}, addresses: []string{"203.0.113.2"},
		release: []string{"203.0.113.1"},
	},
	{
		name:    "a manual claim of any address is used",
		vips:    []VIP{vip("203.0.113.99", "", Owner{Namespace: "shop", Name: "web"})},
		request: Request{Families: single, RequireAll: true}, addresses: []string{"203.0.113.99"}, bind: []string{"203.0.113.99"},
	},
	{
		name:    "a manual claim moves no assigned address and is kept",
		vips:    []VIP{vip("203.0.113.1", "", Owner{Namespace: "shop", Name: "web"}), vip("203.0.113.2", "a", web)},
		request: Request{Families: single, RequireAll: true}, addresses: []string{"203.0.113.2"},
	},
	{
		name:    "a claim of a previous Service with the same name is ignored",
		vips:    []VIP{vip("203.0.113.1", "a", Owner{Namespace: "shop", Name: "web", UID: "0"})},
		request: Request{Families: single, RequireAll: true, Eligible: []string{"a"}}, addresses: []string{"203.0.113.2"}, create: []string{"203.0.113.2"},
	},
	{
		name:    "moved to the requested pool",
		vips:    []VIP{vip("203.0.113.1", "a", web)},
		request: Request{Families: single, RequireAll: true, Pool: "kept"}, addresses: []string{"198.51.100.200"},
		create: []string{"198.51.100.200"}, release: []string{"203.0.113.1"},
	},
	{
		name:    "not moved if the requested pool is exhausted",
		vips:    []VIP{vip("203.0.113.1", "a", web)},
		request: Request{Families: single, RequireAll: true, Pool: "b"}, addresses: []string{"203.0.113.1"},
		refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "kept if the requested pool does not exist, and reported",
		vips:    []VIP{vip("203.0.113.1", "a", web)},
		request: Request{Families: single, RequireAll: true, Pool: "none"}, addresses: []string{"203.0.113.1"},
		refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "kept, even with an optional family, if the requested pool does not exist",
		vips:    []VIP{vip("203.0.113.1", "a", web)},
		request: Request{Families: dual, Pool: "none"}, addresses: []string{"203.0.113.1"},
		refusals: []Reason{NoMatchingPool, NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "reserved manually outside of pools, requested pool does not exist",
		vips:    []VIP{vip("203.0.113.99", "", web)},
		request: Request{Families: single, RequireAll: true, Pool: "none"}, addresses: []string{"203.0.113.99"},
		refusals: []Reason{NoMatchingPool}, unsatisfied: true,
	},
	{
		name:    "kept if the requested pool is full",
		vips:    []VIP{vip("203.0.113.1", "a", web), vip("198.51.100.200", "kept", other), vip("198.51.100.201", "kept", other)},
		request: Request{Families: single, RequireAll: true, Pool: "kept"}, addresses: []string{"203.0.113.1"},
		refusals: []Reason{PoolExhausted}, unsatisfied: true,
	},
}

var requestedAddresses = []planCase{
	{
		name:    "several addresses of a family, in the requested order",
		request: Request{Families: []Family{IPv6, IPv4}, RequireAll: true, Addresses: addresses("203.0.113.2", "198.51.100.200")},

		addresses: []string{"2001:db8::1", "203.0.113.2", "198.51.100.200"}, create: []string{"2001:db8::1", "203.0.113.2", "198.51.100.200"},
	},
	{
		name:    "one of several requested addresses is in use: all or nothing",
		vips:    []VIP{vip("203.0.113.1", "a", other)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.1", "203.0.113.2")},

		refusals: []Reason{AddressInUse}, unsatisfied: true,
	},
	{
		name:    "one more requested address, existing ones are kept",
		vips:    []VIP{vip("203.0.113.2", "a", web)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.1", "203.0.113.2")},

		addresses: []string{"203.0.113.1", "203.0.113.2"}, create: []string{"203.0.113.1"},
	},
	{
		name:    "one of several requested addresses is not available: another is kept",
		vips:    []VIP{vip("203.0.113.1", "a", other), vip("198.51.100.129", "z-high", web)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2", "203.0.113.1")},

		addresses: []string{"203.0.113.2", "198.51.100.129"}, create: []string{"203.0.113.2"}, refusals: []Reason{AddressInUse}, unsatisfied: true,
	},
	{
		name:    "several addresses no longer requested: one is kept",
		vips:    []VIP{vip("203.0.113.1", "a", web), vip("203.0.113.2", "a", web)},
		request: Request{Families: single, RequireAll: true, Hints: addresses("203.0.113.2")},

		addresses: []string{"203.0.113.2"}, release: []string{"203.0.113.1"},
	},
	{
		name:    "requested address",
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2")}, addresses: []string{"203.0.113.2"}, create: []string{"203.0.113.2"},
	},
	{
		name:    "requested address without auto-assignment, other family as usual",
		request: Request{Families: dual, RequireAll: true, Addresses: addresses("198.51.100.201")}, addresses: []string{"198.51.100.201", "2001:db8::1"},
		create: []string{"198.51.100.201", "2001:db8::1"},
	},
	{
		name:    "reserved manually",
		vips:    []VIP{vip("203.0.113.2", "")},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2")}, addresses: []string{"203.0.113.2"}, bind: []string{"203.0.113.2"},
	},
	{
		name:    "reserved for another Service",
		vips:    []VIP{vip("203.0.113.2", "a", Owner{Namespace: "shop", Name: "other"})},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2")}, refusals: []Reason{AddressInUse}, unsatisfied: true,
	},
	{
		name:    "held, but not from the requested pool",
		vips:    []VIP{vip("203.0.113.2", "a", web)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2"), Pool: "kept"}, addresses: []string{"203.0.113.2"},
		refusals: []Reason{AddressNotInPool}, unsatisfied: true,
	},
	{
		name:    "address in use",
		vips:    []VIP{vip("203.0.113.2", "a", other)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2")}, refusals: []Reason{AddressInUse}, unsatisfied: true,
	},
	{
		name:    "address outside of pools",
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.50")}, refusals: []Reason{AddressNotInPool}, unsatisfied: true,
	},
	{
		name:    "pool does not select the Service, although a VIP is reserved",
		vips:    []VIP{vip("203.0.113.2", "a")},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2"), Eligible: []string{"kept"}},

		refusals: []Reason{AddressNotInPool}, unsatisfied: true,
	},
	{
		name:    "address not from the requested pool",
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2"), Pool: "kept"},

		refusals: []Reason{AddressNotInPool}, unsatisfied: true,
	},
	{
		name:    "address of a family that the Service does not have",
		request: Request{Families: single, RequireAll: true, Addresses: addresses("2001:db8::1")}, addresses: []string{"198.51.100.129"},
		create: []string{"198.51.100.129"}, refusals: []Reason{NotRequested}, unsatisfied: true,
	},
	{
		name:    "held, but the pool was deleted",
		vips:    []VIP{vip("203.0.113.77", "gone", web)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.77")}, addresses: []string{"203.0.113.77"},
	},
	{
		name:    "moved to the requested address",
		vips:    []VIP{vip("203.0.113.1", "a", web)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2")}, addresses: []string{"203.0.113.2"},
		create: []string{"203.0.113.2"}, release: []string{"203.0.113.1"},
	},
	{
		name:    "not moved to an address in use",
		vips:    []VIP{vip("203.0.113.1", "a", web), vip("203.0.113.2", "a", other)},
		request: Request{Families: single, RequireAll: true, Addresses: addresses("203.0.113.2")}, addresses: []string{"203.0.113.1"},
		refusals: []Reason{AddressInUse}, unsatisfied: true,
	},
	{
		name:    "refused for one family, other family assigned if one is sufficient",
		request: Request{Families: dual, Addresses: addresses("203.0.113.50")}, addresses: []string{"2001:db8::1"},
		create: []string{"2001:db8::1"}, refusals: []Reason{AddressNotInPool}, unsatisfied: true,
	},
}
