// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/test/bird"
)

const (
	globalNeighbor = ` neighbor 2001:db8::2 remote-as 64512
 neighbor 2001:db8::2 timers connect 1
 CAPABILITY
 address-family ipv4 unicast
  neighbor 2001:db8::2 activate
 exit-address-family
 address-family ipv6 unicast
  neighbor 2001:db8::2 activate
 exit-address-family
`
	linkLocalNeighbor = ` neighbor fe80::22 remote-as external
 neighbor fe80::22 interface eth0
 neighbor fe80::22 timers connect 1
 CAPABILITY
 address-family ipv4 unicast
  neighbor fe80::22 activate
 exit-address-family
 address-family ipv6 unicast
  neighbor fe80::22 activate
 exit-address-family
`
)

// A router with the capability installs IPv4 routes with global and link-local IPv6 next hops. Without it,
// only IPv6 routes are sent, and IPv4 routes with such a next hop are withdrawn.
func TestExtendedNextHop(t *testing.T) {
	for name, test := range map[string]struct {
		neighbor, capability    string
		router, source, nextHop string
	}{
		"global":     {globalNeighbor, "neighbor 2001:db8::2 capability extended-nexthop", "2001:db8::1", "2001:db8::2", "2001:db8::2"},
		"link-local": {linkLocalNeighbor, "neighbor fe80::22 capability extended-nexthop", "fe80::11%eth0", "fe80::22%eth0", "fe80::22"},
	} {
		for _, offers := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " offered", false: " not offered"}[offers], func(t *testing.T) {
				capability := test.capability
				if !offers {
					capability = "no " + capability
				}
				l := newLab(t, strings.Replace(test.neighbor, "CAPABILITY", capability, 1))
				l.Run("ip", "-n", l.NodeSpace, "address", "add", "fe80::22/64", "dev", "eth0", "nodad")
				l.Run("ip", "-n", l.RouterSpace, "address", "add", "fe80::11/64", "dev", "eth0", "nodad")
				peer := testPeer()
				peer.Address, peer.Source = netip.MustParseAddr(test.router), netip.MustParseAddr(test.source)
				peer.ExtendedNextHop = true
				extended := func(vip string) announce.Route {
					route := testRoute(vip)
					route.NextHop = netip.MustParseAddr(test.nextHop)
					return route
				}
				want := Want{RouterID: nodeIPv4, Peers: []model.Peer{peer}, Routes: announce.Routes{peerName: {extended(vip4), extended(vip6)}}}
				p := l.speaker("fresh")
				p.set(want)
				l.await(p, 20*time.Second, "up", isUp)
				if offers {
					l.awaitRoutes(10*time.Second, map[string]string{vip4: test.nextHop, vip6: test.nextHop})
					if s := p.session(peerName); len(s.Withheld) > 0 || s.Message != "" || s.Routes != 2 {
						t.Errorf("session %+v", s)
					}
					p.set(Want{RouterID: nodeIPv4, Peers: want.Peers, Routes: announce.Routes{peerName: {extended(vip6)}}})
					l.awaitRoutes(10*time.Second, map[string]string{vip6: test.nextHop})
					return
				}
				l.awaitRoutes(10*time.Second, map[string]string{vip6: test.nextHop})
				l.await(p, time.Second, "established, with the withheld families reported", func(s Session) bool {
					return isUp(s) && strings.Contains(s.Message, "RFC 8950") && s.Routes == 1 && len(s.Withheld) == 1 &&
						s.Withheld[0] == millracev1beta1.FamilyIPv4
				})
				up := p.session(peerName).Since
				// Toggling does not reset the session.
				for range 2 {
					want.Peers[0].ExtendedNextHop, want.Routes[peerName][0] = false, testRoute(vip4)
					p.set(want)
					l.Await(10*time.Second, "the IPv4 route at the router with the node's IPv4 address", func() bool {
						return l.learnt("ipv4") == 1
					})
					want.Peers[0].ExtendedNextHop, want.Routes[peerName][0] = true, extended(vip4)
					p.set(want)
					l.Await(10*time.Second, "the IPv4 route withdrawn", func() bool { return l.learnt("ipv4") == 0 })
				}
				if s := p.session(peerName); !s.Since.Equal(up) {
					t.Errorf("the session was re-established: %+v", s)
				}
			})
		}
	}
}

func TestExtendedNextHopAtBIRD(t *testing.T) {
	const neighbor = `protocol bgp node {
	local 2001:db8::1 as 64500;
	neighbor 2001:db8::2 as 64512;
	passive; graceful restart aware; connect retry time 1; error wait time 1, 1;
	ipv4 { import all; export none; extended next hop on; };
	ipv6 { import all; export none; };
}
`
	for name, test := range map[string]struct {
		neighbor string
		routes   []string
	}{
		"offered":        {neighbor, []string{vip4, vip6}},
		"not negotiated": {strings.Replace(neighbor, "extended next hop on;", "", 1), []string{vip6}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t)
			router := bird.Start(t, l.RouterSpace, test.neighbor)
			peer := testPeer()
			peer.Address, peer.Source = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
			peer.ExtendedNextHop = true
			var routes []announce.Route
			for _, vip := range []string{vip4, vip6} {
				route := testRoute(vip)
				route.NextHop = peer.Source
				routes = append(routes, route)
			}
			p := l.speaker("fresh")
			p.set(Want{RouterID: nodeIPv4, Peers: []model.Peer{peer}, Routes: announce.Routes{peerName: routes}})
			l.await(p, 20*time.Second, "up", isUp)
			want := map[string]bool{}
			for _, vip := range test.routes {
				want[vip] = true
			}
			router.Await(20*time.Second, "the routes in the kernel", func() bool { return maps.Equal(l.birdRoutes(), want) })
			if s := p.session(peerName); s.Routes != len(test.routes) {
				t.Errorf("session %+v, want %d routes", s, len(test.routes))
			}
		})
	}
}
