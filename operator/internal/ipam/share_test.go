// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

var (
	tcp53, udp53 = Port{53, "TCP"}, Port{53, "UDP"}
	tcp80        = Port{80, "TCP"}
	stranger     = Owner{Namespace: "elsewhere", Name: "other", UID: "3"}
	poolShared   = Pool{Name: "shared", Addresses: setOf(rangeOf("198.51.100.210", "198.51.100.211")), SharedByAll: true}
)

func keyed(owner Owner, key string, ports ...Port) Claim {
	return Claim{Owner: owner, SharingKey: key, Ports: ports}
}

func claimed(address, pool string, claims ...Claim) VIP {
	return VIP{Address: netip.MustParseAddr(address), Pool: pool, Claims: claims}
}

func releasedClaim(owner Owner, key string, ports ...Port) Claim {
	claim := keyed(owner, key, ports...)
	claim.Releasing = true
	return claim
}

func manyClaims(count int) []Claim {
	var claims []Claim
	for i := range count {
		owner := Owner{Namespace: "shop", Name: fmt.Sprintf("s%d", i), UID: "u"}
		claims = append(claims, keyed(owner, "dns", Port{uint16(1000 + i), "TCP"}))
	}
	return claims
}

type shareCase struct {
	name    string
	vips    []VIP
	request Request
	// want are writes, as "create 203.0.113.1 [53/UDP]", and releases; refusals are parts of messages.
	want      []string
	refusals  []string
	satisfied bool
}

func dnsRequest(ports ...Port) Request {
	return Request{Families: single, RequireAll: true, SharingKey: "dns", Ports: ports}
}

func (r Request) with(change func(*Request)) Request {
	change(&r)
	return r
}

var joinCases = []shareCase{
	{
		name: "first Service of a key gets an address and lists its ports", request: dnsRequest(tcp53, tcp80),
		want: []string{"create 198.51.100.129 [53/TCP 80/TCP]"}, satisfied: true,
	},
	{
		name: "second Service joins", vips: []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", tcp53))}, request: dnsRequest(udp53),
		want: []string{"bind 203.0.113.1 [53/UDP]"}, satisfied: true,
	},
	{
		name:    "both families",
		vips:    []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", tcp53)), claimed("2001:db8::1", "b", keyed(other, "dns", tcp53))},
		request: dnsRequest(udp53).with(func(r *Request) { r.Families = dual }),
		want:    []string{"bind 2001:db8::1 [53/UDP]", "bind 203.0.113.1 [53/UDP]"}, satisfied: true,
	},
	{
		name:    "one family shared, one separate",
		vips:    []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", tcp53))},
		request: dnsRequest(udp53).with(func(r *Request) { r.Families = dual }),
		want:    []string{"bind 203.0.113.1 [53/UDP]", "create 2001:db8::1 [53/UDP]"}, satisfied: true,
	},
	{
		name: "pool without auto-assignment", vips: []VIP{claimed("198.51.100.200", "kept", keyed(other, "dns", tcp53))},
		request: dnsRequest(udp53), want: []string{"bind 198.51.100.200 [53/UDP]"}, satisfied: true,
	},
	{
		name:    "second address of the key if ports of the first are in use",
		vips:    []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", udp53)), claimed("203.0.113.2", "a", keyed(other, "dns", tcp53))},
		request: dnsRequest(udp53), want: []string{"bind 203.0.113.2 [53/UDP]"}, satisfied: true,
	},
	{
		name: "another address if a port is in use", vips: []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", tcp53, udp53))},
		request: dnsRequest(udp53, tcp80), want: []string{"create 198.51.100.129 [53/UDP 80/TCP]"}, satisfied: true,
	},
	{
		name:    "one family shared, another address of the other family",
		vips:    []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", udp53)), claimed("2001:db8::1", "b", keyed(other, "dns", tcp53))},
		request: dnsRequest(udp53).with(func(r *Request) { r.Families = dual }),
		want:    []string{"bind 2001:db8::1 [53/UDP]", "create 198.51.100.129 [53/UDP]"}, satisfied: true,
	},
	{
		name: "waits while the port is being released", vips: []VIP{claimed("203.0.113.1", "a", releasedClaim(other, "dns", udp53))},
		request:  dnsRequest(udp53).with(func(r *Request) { r.Eligible = []string{"a"} }),
		refusals: []string{"PortConflict ports of 203.0.113.1 are already used: 53/UDP (Service shop/other)"},
	},
	{
		name: "waits if a port is in use and no address is free", vips: []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", tcp53, udp53)), vip("203.0.113.2", "a", stranger)},
		request:  dnsRequest(udp53, tcp80).with(func(r *Request) { r.Eligible = []string{"a"} }),
		refusals: []string{`PortConflict the address with the sharing key "dns" is not available: ports of 203.0.113.1 are already used: 53/UDP (Service shop/other); no free IPv4 address in pool "a"`},
	},
	{
		name: "all claims must have the key", vips: []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", tcp53), keyed(stranger, "", tcp80))},
		request: dnsRequest(udp53), refusals: []string{`AddressInUse`},
	},
	{
		name: "another key", vips: []VIP{claimed("203.0.113.1", "a", keyed(other, "web", tcp53))}, request: dnsRequest(udp53),
		want: []string{"create 198.51.100.129 [53/UDP]"}, satisfied: true,
	},
	{
		name: "the key of another namespace is a different key", vips: []VIP{claimed("203.0.113.1", "a", keyed(stranger, "dns", tcp53))},
		request: dnsRequest(udp53), want: []string{"create 198.51.100.129 [53/UDP]"}, satisfied: true,
	},
	{
		name:    "unless the pool is shared by all namespaces",
		vips:    []VIP{claimed("198.51.100.210", "shared", keyed(stranger, "dns", tcp53))},
		request: dnsRequest(udp53), want: []string{"bind 198.51.100.210 [53/UDP]"}, satisfied: true,
	},
	{
		name:    "key of other namespaces in a pool not available to the Service",
		vips:    []VIP{claimed("198.51.100.210", "shared", keyed(stranger, "dns", tcp53))},
		request: dnsRequest(udp53).with(func(r *Request) { r.Eligible = []string{"a"} }),
		want:    []string{"create 203.0.113.1 [53/UDP]"}, satisfied: true,
	},
	{
		name:     "address of the key is in a pool not available to the Service",
		vips:     []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", tcp53))},
		request:  dnsRequest(udp53).with(func(r *Request) { r.Eligible = []string{"kept"} }),
		refusals: []string{"AddressNotInPool address 203.0.113.1 is not in any pool that selects this Service"},
	},
	{
		name:    "the requested pool has precedence over the key",
		vips:    []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", tcp53))},
		request: dnsRequest(udp53).with(func(r *Request) { r.Pool = "kept" }),
		want:    []string{"create 198.51.100.200 [53/UDP]"}, satisfied: true,
	},
	{
		name:     "full",
		vips:     []VIP{claimed("203.0.113.1", "a", manyClaims(maxClaims)...)},
		request:  dnsRequest(udp53).with(func(r *Request) { r.Addresses = addresses("203.0.113.1") }),
		refusals: []string{`AddressFull address 203.0.113.1 of pool "a" is already shared by 64 Services`},
	},
	{
		name:    "another address if one is full",
		vips:    []VIP{claimed("203.0.113.1", "a", manyClaims(maxClaims)...)},
		request: dnsRequest(udp53), want: []string{"create 198.51.100.129 [53/UDP]"}, satisfied: true,
	},
	{
		name:    "the last place",
		vips:    []VIP{claimed("203.0.113.1", "a", manyClaims(maxClaims-1)...)},
		request: dnsRequest(udp53), want: []string{"bind 203.0.113.1 [53/UDP]"}, satisfied: true,
	},
	{
		name: "a manual claim for a future Service is not shared", vips: []VIP{claimed("203.0.113.1", "a", Claim{Owner: Owner{Namespace: "shop", Name: "later"}})},
		request: dnsRequest(udp53).with(func(r *Request) { r.Addresses = addresses("203.0.113.1") }), refusals: []string{"AddressInUse"},
	},
}

var requestedCases = []shareCase{
	{
		name:    "by address, with the key",
		vips:    []VIP{claimed("203.0.113.2", "a", keyed(other, "dns", tcp53))},
		request: dnsRequest(udp53).with(func(r *Request) { r.Addresses = addresses("203.0.113.2") }),
		want:    []string{"bind 203.0.113.2 [53/UDP]"}, satisfied: true,
	},
	{
		name:     "by address, without the key",
		vips:     []VIP{claimed("203.0.113.2", "a", keyed(other, "dns", tcp53))},
		request:  Request{Families: single, RequireAll: true, Ports: []Port{udp53}, Addresses: addresses("203.0.113.2")},
		refusals: []string{`AddressInUse address 203.0.113.2 of pool "a" is in use by Service shop/other`},
	},
	{
		name:     "by address, no Service has the key",
		vips:     []VIP{vip("203.0.113.2", "a", other)},
		request:  dnsRequest(udp53).with(func(r *Request) { r.Addresses = addresses("203.0.113.2") }),
		refusals: []string{`AddressInUse is in use by Service shop/other, which does not have the sharing key "dns"`},
	},
	{
		name:     "by address, of another namespace: not shared",
		vips:     []VIP{claimed("203.0.113.2", "a", keyed(stranger, "dns", tcp53))},
		request:  dnsRequest(udp53).with(func(r *Request) { r.Addresses = addresses("203.0.113.2") }),
		refusals: []string{`AddressInUse is in use by Service elsewhere/other, and the pool's sharingScope restricts each address to one namespace`},
	},
	{
		name:     "by address, with a port in use",
		vips:     []VIP{claimed("203.0.113.2", "a", keyed(other, "dns", tcp53))},
		request:  dnsRequest(tcp53).with(func(r *Request) { r.Addresses = addresses("203.0.113.2") }),
		refusals: []string{"PortConflict ports of 203.0.113.2 are already used: 53/TCP (Service shop/other)"},
	},
	{
		name:    "moved to the shared address",
		vips:    []VIP{claimed("203.0.113.1", "a", keyed(web, "dns", udp53)), claimed("203.0.113.2", "a", keyed(other, "dns", tcp53))},
		request: dnsRequest(udp53).with(func(r *Request) { r.Addresses = addresses("203.0.113.2") }),
		want:    []string{"bind 203.0.113.2 [53/UDP]", "release 203.0.113.1"}, satisfied: true,
	},
	{
		name: "a claim of a previous Service with the same name is not joined",
		vips: []VIP{claimed("203.0.113.1", "a", keyed(Owner{Namespace: "shop", Name: "web", UID: "0"}, "dns", tcp53))},

		request: dnsRequest(udp53), refusals: []string{"AddressInUse is in use by Service shop/web"},
	},
}

var heldCases = []shareCase{
	{
		name: "unchanged", vips: []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", tcp53), keyed(web, "dns", udp53))},
		request: dnsRequest(udp53), satisfied: true,
	},
	{
		name: "another port", vips: []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", tcp53), keyed(web, "dns", udp53))},
		request: dnsRequest(udp53, tcp80), want: []string{"bind 203.0.113.1 [53/UDP 80/TCP]"}, satisfied: true,
	},
	{
		name: "additional port of the first Service", vips: []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", tcp53), keyed(web, "dns", udp53))},
		request: dnsRequest(udp53, tcp53), refusals: []string{"PortConflict ports of 203.0.113.1 are already used: 53/TCP (Service shop/other)"},
	},
	{
		name: "additional port of the first Service, used by the second", vips: []VIP{claimed("203.0.113.1", "a", keyed(web, "dns", tcp53), keyed(other, "dns", udp53))},
		request: dnsRequest(udp53), want: []string{"bind 203.0.113.1 []"}, refusals: []string{"PortConflict 53/UDP (Service shop/other)"},
	},
	{
		name: "a port listed in two manual claims belongs to the first", vips: []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", tcp53), keyed(web, "dns", tcp53, udp53))},
		request: dnsRequest(tcp53, udp53), want: []string{"bind 203.0.113.1 [53/UDP]"}, refusals: []string{"PortConflict"},
	},
	{
		name: "port ownership is stable", vips: []VIP{claimed("203.0.113.1", "a", keyed(web, "dns", tcp53, udp53), keyed(other, "dns", tcp53))},
		request: dnsRequest(tcp53, udp53), satisfied: true,
	},
	{
		name: "key for an exclusive address", vips: []VIP{vip("203.0.113.1", "a", web)}, request: dnsRequest(udp53),
		want: []string{"bind 203.0.113.1 [53/UDP]"}, satisfied: true,
	},
	{
		name: "a key used elsewhere does not move the Service", vips: []VIP{vip("203.0.113.1", "a", web), claimed("203.0.113.2", "a", keyed(other, "dns", tcp53))},
		request: dnsRequest(udp53), want: []string{"bind 203.0.113.1 [53/UDP]"},
		refusals: []string{`OtherAddress Services with the sharing key "dns" also use address 203.0.113.2 (Service shop/other)`}, satisfied: true,
	},
	{
		name: "no refusal is reported for it", vips: []VIP{claimed("203.0.113.1", "a", keyed(web, "dns", udp53)), claimed("203.0.113.2", "a", keyed(other, "dns", udp53))},
		request: dnsRequest(udp53), satisfied: true,
	},
	{
		name: "key removed, still shared", vips: []VIP{claimed("203.0.113.1", "a", keyed(web, "dns", udp53), keyed(other, "dns", tcp53))},
		request: Request{Families: single, RequireAll: true, Ports: []Port{udp53}}, want: []string{"bind 203.0.113.1 [53/UDP]"}, satisfied: true,
	},
	{
		name: "key removed, exclusive", vips: []VIP{claimed("203.0.113.1", "a", keyed(web, "dns", udp53))},
		request: Request{Families: single, RequireAll: true, Ports: []Port{udp53}}, want: []string{"bind 203.0.113.1 []"}, satisfied: true,
	},
	{
		name: "moved from a shared address", vips: []VIP{claimed("203.0.113.1", "a", keyed(other, "dns", tcp53), keyed(web, "dns", udp53))},
		request: dnsRequest(udp53).with(func(r *Request) { r.Pool = "kept" }),
		want:    []string{"create 198.51.100.200 [53/UDP]", "release 203.0.113.1"}, satisfied: true,
	},
	{
		name: "pool no longer shared by all namespaces", vips: []VIP{claimed("203.0.113.1", "a", keyed(stranger, "dns", tcp53), keyed(web, "dns", udp53))},
		request: dnsRequest(udp53), satisfied: true,
	},
	{
		name: "with a manual claim of another Service", vips: []VIP{claimed("203.0.113.1", "a", Claim{Owner: web}, Claim{Owner: Owner{Namespace: "shop", Name: "other"}})},
		request: Request{Families: single, RequireAll: true, Ports: []Port{udp53}}, want: []string{"bind 203.0.113.1 [53/UDP]"}, satisfied: true,
	},
	{
		name: "manual claim with a Service without listed ports", vips: []VIP{claimed("203.0.113.1", "a", Claim{Owner: other}, Claim{Owner: Owner{Namespace: "shop", Name: "web"}})},
		request: Request{Families: single, RequireAll: true, Ports: []Port{udp53}}, want: []string{"bind 203.0.113.1 []"}, satisfied: true,
	},
}

func TestShare(t *testing.T) {
	for _, group := range [][]shareCase{joinCases, requestedCases, heldCases} {
		for _, test := range group {
			t.Run(test.name, func(t *testing.T) { checkShare(t, test) })
		}
	}
}

func checkShare(t *testing.T, test shareCase) {
	test.request.Owner = web
	if test.request.Eligible == nil {
		test.request.Eligible = append(slices.Clone(names), "shared")
	}
	plan := Make(NewTable(test.vips...), append(slices.Clone(allPools), poolShared), test.request)
	var got []string
	for verb, writes := range map[string][]Write{"create": plan.Create, "bind": plan.Bind} {
		for _, write := range writes {
			got = append(got, fmt.Sprintf("%s %s %v", verb, write.Address, write.Claim.Ports))
			if write.Claim.Owner != web || write.Claim.SharingKey != test.request.SharingKey {
				t.Errorf("claim = %+v", write.Claim)
			}
		}
	}
	for _, address := range plan.Release {
		got = append(got, "release "+address.String())
	}
	slices.Sort(got)
	compare(t, "the plan", got, test.want)
	if plan.Satisfied != test.satisfied {
		t.Errorf("Satisfied = %v", plan.Satisfied)
	}
	if len(plan.Refusals) != len(test.refusals) || len(plan.Refusals) > 0 && !plan.Waiting {
		t.Fatalf("refusals = %+v, want %q", plan.Refusals, test.refusals)
	}
	reasons := map[Reason]string{
		AddressInUse: "AddressInUse", AddressNotInPool: "AddressNotInPool", PortConflict: "PortConflict", AddressFull: "AddressFull", OtherAddress: "OtherAddress",
	}
	for i, refusal := range plan.Refusals {
		reason, message, _ := strings.Cut(test.refusals[i], " ")
		if reasons[refusal.Reason] != reason || !strings.Contains(refusal.Message, message) {
			t.Errorf("refusal = %s %q, want %q", reasons[refusal.Reason], refusal.Message, test.refusals[i])
		}
	}
}

func TestConflictMessage(t *testing.T) {
	var taken []Conflict
	for i := range 7 {
		taken = append(taken, Conflict{Port: Port{uint16(i + 1), "TCP"}, Owner: other})
	}
	want := "ports of 203.0.113.1 are already used: 1/TCP (Service shop/other), 2/TCP (Service shop/other), 3/TCP (Service shop/other), " +
		"4/TCP (Service shop/other), 5/TCP (Service shop/other), 2 more"
	if got := conflictMessage(netip.MustParseAddr("203.0.113.1"), taken); got != want {
		t.Errorf("message = %q", got)
	}
}
