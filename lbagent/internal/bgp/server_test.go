// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const peerName = "router"

func testPeer() model.Peer {
	return model.Peer{
		Name:             peerName,
		Address:          routerIPv4,
		Port:             179,
		ASN:              64500,
		LocalASN:         64512,
		HoldTime:         9 * time.Second,
		KeepaliveTime:    3 * time.Second,
		ConnectRetryTime: time.Second,
		IPv4:             true,
		IPv6:             true,
		RestartTime:      60 * time.Second,
	}
}

func testRoute(vip string) announce.Route {
	address := netip.MustParseAddr(vip)
	nextHop := nodeIPv4
	if address.Is6() {
		nextHop = nodeIPv6
	}
	return announce.Route{Prefix: netip.PrefixFrom(address, address.BitLen()), NextHop: nextHop}
}

func testWant(routes ...announce.Route) Want {
	return Want{RouterID: nodeIPv4, Peers: []model.Peer{testPeer()}, Routes: announce.Routes{peerName: routes}}
}

var (
	vip4, vip6 = "203.0.113.10", "2001:db8:f::10"
	both       = map[string]string{vip4: nodeIPv4.String(), vip6: nodeIPv6.String()}
)

func (l *lab) awaitRoutes(limit time.Duration, want map[string]string) {
	l.t.Helper()
	what := fmt.Sprintf("the router's kernel has %d routes", len(want))
	if len(want) < 10 {
		what = fmt.Sprintf("the router's kernel has %v", want)
	}
	l.Await(limit, what, func() bool { return maps.Equal(l.KernelRoutes(), want) })
}

func (l *lab) awaitEstablished(p *process) {
	l.t.Helper()
	l.Await(20*time.Second, "session established", func() bool {
		return p.session(peerName).State == millracev1beta1.SessionEstablished
	})
}

type neighborState struct {
	Established int `json:"connectionsEstablished"`
	Dropped     int `json:"connectionsDropped"`
}

func (l *lab) neighborState() neighborState {
	l.t.Helper()
	var neighbors map[string]neighborState
	l.Show("show bgp neighbors json", &neighbors)
	return neighbors[nodeIPv4.String()]
}

// Routes of both families are added, changed and withdrawn without a session reset.
func TestRoutesFollowWant(t *testing.T) {
	l := newLab(t, staticNeighbor)
	p := l.speaker("fresh")
	p.set(testWant(testRoute(vip4), testRoute(vip6)))
	l.awaitRoutes(20*time.Second, both)
	before := l.neighborState()

	changed := testRoute(vip4)
	changed.Communities = []uint32{64512<<16 | 100}
	changed.LargeCommunities = [][3]uint32{{64512, 1, 100}}
	p.set(testWant(changed, testRoute(vip6)))
	l.Await(5*time.Second, "communities at the router", func() bool {
		var route struct {
			Paths []struct {
				Community      struct{ String string }
				LargeCommunity struct{ String string }
			}
		}
		l.Show("show bgp ipv4 unicast "+vip4+"/32 json", &route)
		return len(route.Paths) == 1 && route.Paths[0].Community.String == "64512:100" &&
			route.Paths[0].LargeCommunity.String == "64512:1:100"
	})
	l.awaitRoutes(0, both)

	p.set(testWant(testRoute(vip6)))
	l.awaitRoutes(5*time.Second, map[string]string{vip6: nodeIPv6.String()})
	p.set(testWant())
	l.awaitRoutes(5*time.Second, map[string]string{})
	if after := l.neighborState(); after != before {
		t.Errorf("the session changed from %+v to %+v", before, after)
	}
	if session := p.session(peerName); session.Routes != 0 || session.Message != "" {
		t.Errorf("session %+v, want no routes and no message", session)
	}
}

// A restarted agent keeps the router forwarding, and stale routes are removed.
func TestRestartKeepsRoutes(t *testing.T) {
	for name, neighbor := range map[string]string{"static": staticNeighbor, "dynamic": dynamicRange} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, neighbor)
			gone := "203.0.113.11"
			p := l.speaker("fresh")
			p.set(testWant(testRoute(vip4), testRoute(vip6), testRoute(gone)))
			withGone := maps.Clone(both)
			withGone[gone] = nodeIPv4.String()
			l.awaitRoutes(20*time.Second, withGone)

			p.kill()
			kept := func() {
				t.Helper()
				routes := l.KernelRoutes()
				if routes[vip4] == "" || routes[vip6] == "" {
					t.Fatalf("the router lost routes while the speaker was stopped: %v", routes)
				}
			}
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
				kept()
			}
			p = l.speaker("restarting")
			p.set(testWant(testRoute(vip4), testRoute(vip6)))
			l.Await(20*time.Second, "session re-established and the stale route removed", func() bool {
				kept()
				return p.session(peerName).State == millracev1beta1.SessionEstablished &&
					l.KernelRoutes()[gone] == ""
			})
			l.awaitRoutes(0, both)
		})
	}
}

// The hold timer removes routes despite graceful restart.
func TestHoldTimerDropsRoutes(t *testing.T) {
	l := newLab(t, staticNeighbor)
	p := l.speaker("fresh")
	p.set(testWant(testRoute(vip4), testRoute(vip6)))
	l.awaitRoutes(20*time.Second, both)
	// Frames are sent to an unused MAC address: the links stay up, so only the hold timer detects the loss.
	const nobody = "02:00:00:00:00:01"
	l.Run("ip", "-n", l.NodeSpace, "neigh", "replace", routerIPv4.String(), "lladdr", nobody, "dev", "eth0", "nud", "permanent")
	l.Run("ip", "-n", l.RouterSpace, "neigh", "replace", nodeIPv4.String(), "lladdr", nobody, "dev", "eth0", "nud", "permanent")
	l.awaitRoutes(testPeer().HoldTime+5*time.Second, map[string]string{})
	session := Session{}
	l.Await(testPeer().HoldTime+5*time.Second, "session not established", func() bool {
		session = p.session(peerName)
		return session.State != millracev1beta1.SessionEstablished
	})
	if session.Message == "" {
		t.Errorf("session %+v is not established, but has no message", session)
	}
}

// After a lost connection the Forwarding State bits preserve the routes.
func TestLostConnectionKeepsRoutes(t *testing.T) {
	l := newLab(t, staticNeighbor)
	p := l.speaker("fresh")
	p.set(testWant(testRoute(vip4), testRoute(vip6)))
	l.awaitRoutes(20*time.Second, both)
	before := p.session(peerName)
	l.Run("ip", "netns", "exec", l.NodeSpace, "ss", "--kill", "--tcp", "dst", routerIPv4.String())
	l.Await(20*time.Second, "session established again", func() bool {
		if routes := l.KernelRoutes(); !maps.Equal(routes, both) {
			t.Fatalf("the router lost routes: %v", routes)
		}
		session := p.session(peerName)
		return session.State == millracev1beta1.SessionEstablished && session.Since.After(before.Since)
	})
	// After End-of-RIB.
	p.set(testWant(testRoute(vip6)))
	l.awaitRoutes(10*time.Second, map[string]string{vip6: nodeIPv6.String()})
}

// Removing a peer withdraws its routes immediately without affecting another session.
func TestPeerRemoved(t *testing.T) {
	l := newLab(t, staticNeighbor+` neighbor 2001:db8::2 remote-as 64512
 address-family ipv6 unicast
  neighbor 2001:db8::2 activate
 exit-address-family
`)
	other := testPeer()
	other.Name, other.Address, other.IPv4 = "other", routerIPv6, false
	want := testWant(testRoute(vip4))
	want.Peers = append(want.Peers, other)
	want.Routes["other"] = []announce.Route{testRoute(vip6)}
	p := l.speaker("fresh")
	p.set(want)
	l.awaitRoutes(20*time.Second, both)
	first := p.session(peerName)

	// The peer may return.
	for range 2 {
		without := want
		without.Peers = want.Peers[:1]
		p.set(without)
		l.awaitRoutes(5*time.Second, map[string]string{vip4: nodeIPv4.String()})
		p.set(want)
		l.awaitRoutes(20*time.Second, both)
		if after := p.session(peerName); after.Flaps != 0 || !after.Since.Equal(first.Since) {
			t.Errorf("the other session changed from %+v to %+v", first, after)
		}
	}
}

func TestRouterRestart(t *testing.T) {
	l := newLab(t, staticNeighbor)
	p := l.speaker("fresh")
	want := testWant(testRoute(vip4), testRoute(vip6))
	// The API's default.
	want.Peers[0].ConnectRetryTime = 3 * time.Second
	p.set(want)
	l.awaitRoutes(20*time.Second, both)
	l.RestartBGP()
	back := time.Now()
	l.Await(20*time.Second, "both routes in the new bgpd", func() bool {
		return l.learnt("ipv4") == 1 && l.learnt("ipv6") == 1
	})
	l.awaitEstablished(p)
	l.awaitRoutes(10*time.Second, both)
	t.Logf("routes complete %s after the restart of the router", time.Since(back))
	if took := time.Since(back); took > 10*time.Second {
		t.Errorf("routes complete after %s, want at most 10s", took)
	}
}

// A router that closes connections before its neighbors are configured, such as FRR, delays the session only
// briefly.
func TestRouterLearnsNeighborsLate(t *testing.T) {
	const bound = 10 * time.Second
	l := newLab(t, "")
	p := l.speaker("fresh")
	want := testWant(testRoute(vip4), testRoute(vip6))
	// The API's default.
	want.Peers[0].ConnectRetryTime = 3 * time.Second
	p.set(want)
	l.await(p, 20*time.Second, "a connection was closed", func(s Session) bool {
		return tells("the router closed the connection")(s) || tells("the connection was reset")(s)
	})
	l.Configure(append([]string{"router bgp 64500"}, strings.Split(strings.TrimSpace(staticNeighbor), "\n")...)...)
	configured := time.Now()
	l.awaitRoutes(20*time.Second, both)
	took := time.Since(configured)
	t.Logf("routes complete %s after the neighbor was configured", took)
	if took > bound {
		t.Errorf("routes complete after %s, want at most %s", took, bound)
	}
}

func (l *lab) learnt(family string) int {
	l.t.Helper()
	var table struct{ Routes map[string]any }
	l.Show("show bgp "+family+" unicast json", &table)
	return len(table.Routes)
}

// A table with the default VIP limit of the data plane is announced quickly, and an additional route
// immediately.
func TestManyRoutes(t *testing.T) {
	const many = 20_000
	l := newLab(t, staticNeighbor)
	var routes []announce.Route
	want := map[string]string{}
	for i := range many + 1 {
		vip := netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8), byte(i)})
		routes = append(routes, testRoute(vip.String()))
		want[vip.String()] = nodeIPv4.String()
	}
	last := routes[many].Prefix.Addr().String()
	delete(want, last)
	p := l.speaker("fresh")
	start := time.Now()
	p.set(testWant(routes[:many]...))
	t.Logf("%d routes passed to the speaker within %s", many, time.Since(start))
	l.awaitRoutes(60*time.Second, want)
	t.Logf("%d routes in the router's kernel %s after the start", many, time.Since(start))
	start = time.Now()
	p.set(testWant(routes...))
	l.Await(20*time.Second, "one more", func() bool { return l.hasKernelRoute(last) })
	t.Logf("one additional route after %s", time.Since(start))
	p.set(testWant(routes[0]))
	l.awaitRoutes(60*time.Second, map[string]string{routes[0].Prefix.Addr().String(): nodeIPv4.String()})
}

func (l *lab) hasKernelRoute(address string) bool {
	out, err := exec.Command("ip", "-n", l.RouterSpace, "route", "show", address+"/32").CombinedOutput()
	return err == nil && strings.Contains(string(out), nodeIPv4.String())
}
