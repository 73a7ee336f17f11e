// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// routerRIB is a router's table: the attributes of prefixes.
type routerRIB map[string]string

// read applies an UPDATE as parsed by GoBGP.
func (r routerRIB) read(t *rapid.T, update []byte) {
	if len(update) > maxMessageLength || int(binary.BigEndian.Uint16(update[markerLength:])) != len(update) {
		t.Fatalf("UPDATE has %d bytes", len(update))
	}
	parsed, err := bgp.ParseBGPMessage(update)
	if err != nil {
		t.Fatalf("GoBGP cannot parse %x: %v", update, err)
	}
	body := parsed.Body.(*bgp.BGPUpdate)
	var reach []bgp.AddrPrefixInterface
	attributes, nextHop := "", ""
	for _, attribute := range body.PathAttributes {
		switch a := attribute.(type) {
		case *bgp.PathAttributeMpReachNLRI:
			reach, nextHop = a.Value, a.Nexthop.String()
		case *bgp.PathAttributeMpUnreachNLRI:
			for _, prefix := range a.Value {
				delete(r, prefix.String())
			}
		case *bgp.PathAttributeNextHop:
			nextHop = a.Value.String()
		default:
			attributes += attribute.String()
		}
	}
	for _, prefix := range body.WithdrawnRoutes {
		delete(r, prefix.String())
	}
	for _, prefix := range body.NLRI {
		reach = append(reach, prefix)
	}
	for _, prefix := range reach {
		r[prefix.String()] = nextHop + attributes
	}
}

func drawRoutes(t *rapid.T) []announce.Route {
	count := rapid.SampledFrom([]int{0, 1, 2, 5, 40, 900}).Draw(t, "count")
	attributes := make([]announce.Route, 3)
	for i := range attributes {
		route := &attributes[i]
		med, weight := uint32(i), rapid.Uint32Range(0, 2).Draw(t, "weight")
		route.MED, route.Weight, route.Prepend = &med, weight, uint8(i)
		route.Communities = slices.Repeat([]uint32{uint32(i)}, rapid.SampledFrom([]int{0, 1, 300}).Draw(t, "communities"))
	}
	var routes []announce.Route
	for i := range count {
		route := attributes[rapid.IntRange(0, 2).Draw(t, "attributes")]
		v6 := rapid.Bool().Draw(t, "IPv6")
		n := rapid.IntRange(0, 1).Draw(t, "gap")
		if v6 {
			route.Prefix = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 14: byte(i >> 7), 15: byte(i<<1 + n)}), 128)
		} else {
			route.Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(i >> 7), byte(i<<1 + n)}), 32)
		}
		if route.NextHop = nodeIPv6; !v6 && rapid.Bool().Draw(t, "classic") {
			route.NextHop = nodeIPv4
		}
		routes = append(routes, route)
	}
	return routes
}

// After any sequence of changes and sessions, the router has the routes of the table that the session can
// carry, with the attributes that a first announcement gives them. The UPDATEs are packed: one more than
// full ones for each set of attributes, and per family of withdrawals.
func TestRouterHasTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		local := rapid.SampledFrom([]uint32{64512, 4200000001}).Draw(t, "local AS")
		peer := model.Peer{ASN: rapid.SampledFrom([]uint32{64500, local}).Draw(t, "AS"), LocalASN: local}
		var router routerRIB
		var sent table
		var session carried
		var e encoder
		begin := func() {
			open := &routerOpen{fourOctets: rapid.Bool().Draw(t, "four octets")}
			session = carried{families{rapid.Bool().Draw(t, "IPv4"), rapid.Bool().Draw(t, "IPv6")}, rapid.Bool().Draw(t, "extended")}
			e, sent, router = newEncoder(&peer, open), nil, routerRIB{}
		}
		begin()
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			if rapid.IntRange(0, 3).Draw(t, "session lost") == 0 {
				begin()
			}
			want := newTable(drawRoutes(t))
			withdrawn, announced := session.difference(sent, want)
			announcements, err := e.announcements(announced)
			if err != nil {
				t.Fatal(err)
			}
			updates := slices.Concat(withdrawals(withdrawn), announcements)
			for _, update := range updates {
				router.read(t, update)
			}
			sent = want

			whole := routerRIB{}
			carriedRoutes := 0
			for i := range want {
				if !session.has(&want[i]) {
					continue
				}
				carriedRoutes++
				alone, err := e.announcements([]*announce.Route{&want[i]})
				if err != nil {
					t.Fatal(err)
				}
				whole.read(t, alone[0])
			}
			if !maps.Equal(router, whole) || len(whole) != carriedRoutes {
				t.Fatalf("the router has %d routes, want %d of %d", len(router), len(whole), carriedRoutes)
			}
			// 3 sets of attributes, 3 kinds of next hops, and 900 prefixes of up to 17 octets in 2,800 octets.
			if most := 9 + 2 + (len(announced)+len(withdrawn))*17/2800; len(updates) > most {
				t.Fatalf("%d UPDATEs for %d routes and %d withdrawals, want at most %d", len(updates), len(announced), len(withdrawn), most)
			}
		}
	})
}

// Routes with equal attributes share an UPDATE, up to its longest length.
func TestPacked(t *testing.T) {
	const many = 20_000
	var routes []*announce.Route
	for i := range many {
		route := testRoute(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}).String())
		routes = append(routes, &route)
	}
	e := encoder{localASN: 64512, external: true, fourOctets: true}
	updates, err := e.announcements(routes)
	if err != nil || len(updates) != 25 {
		t.Errorf("%d UPDATEs for %d routes, error %v; want 25", len(updates), many, err)
	}
	for _, update := range updates {
		if len(update) > maxMessageLength {
			t.Fatalf("UPDATE has %d bytes", len(update))
		}
	}
	// Attributes that do not fit into a message cause an error only for their routes.
	long := testRoute(vip4)
	long.Communities = make([]uint32, maxMessageLength/4)
	short := testRoute("203.0.113.11")
	updates, err = e.announcements([]*announce.Route{&long, &short})
	if len(updates) != 1 || err == nil || !strings.Contains(err.Error(), vip4) {
		t.Errorf("%d UPDATEs, error %v; want one UPDATE and an error about %s", len(updates), err, vip4)
	}
}
