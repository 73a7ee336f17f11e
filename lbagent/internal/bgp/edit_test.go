// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

func TestCompare(t *testing.T) {
	for name, test := range map[string]struct {
		edit     func(*model.Peer)
		password bool
		want     change
	}{
		"nothing":                 {func(*model.Peer) {}, true, unchanged},
		"hold time":               {func(p *model.Peer) { p.HoldTime = time.Minute }, true, nextSession},
		"keepalive time":          {func(p *model.Peer) { p.KeepaliveTime = time.Second }, true, nextSession},
		"connect retry":           {func(p *model.Peer) { p.ConnectRetryTime = time.Minute }, true, nextSession},
		"restart time":            {func(p *model.Peer) { p.RestartTime = 0 }, true, nextSession},
		"extended next hop":       {func(p *model.Peer) { p.ExtendedNextHop = true }, true, nextSession},
		"Secret name":             {func(p *model.Peer) { p.PasswordSecret = "other" }, true, nextSession},
		"password":                {func(*model.Peer) {}, false, reconnect},
		"no IPv6":                 {func(p *model.Peer) { p.IPv6 = false }, true, nextSession},
		"no IPv4":                 {func(p *model.Peer) { p.IPv4 = false }, true, nextSession},
		"name and range":          {func(p *model.Peer) { p.Name, p.OfRange = "other", "range" }, true, nextSession},
		"passive":                 {func(p *model.Peer) { p.Passive = true }, true, nextSession},
		"source":                  {func(p *model.Peer) { p.Source = nodeIPv4 }, true, reconnect},
		"interface":               {func(p *model.Peer) { p.SourceInterface = "eth1" }, true, reconnect},
		"hops":                    {func(p *model.Peer) { p.MultiHopTTL = 2 }, true, reconnect},
		"TTL security":            {func(p *model.Peer) { p.SecurityHops = 1 }, true, reconnect},
		"ASN":                     {func(p *model.Peer) { p.ASN = 1 }, true, cease},
		"any external AS":         {func(p *model.Peer) { p.ASN = 0 }, true, nextSession},
		"internal AS":             {func(p *model.Peer) { p.ASN = p.LocalASN }, true, cease},
		"local ASN":               {func(p *model.Peer) { p.LocalASN = 1 }, false, cease},
		"timers and TTL security": {func(p *model.Peer) { p.HoldTime, p.SecurityHops = time.Minute, 1 }, true, reconnect},
	} {
		want := testPeer()
		test.edit(&want)
		if got := compare(testPeer(), want, test.password, testPeer().ASN); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
	only6 := testPeer()
	if only6.IPv4 = false; compare(only6, testPeer(), true, 0) != reconnect {
		t.Error("adding an address family does not cause a reconnect")
	}
}

// A passive peer's password applies to the next connection.
func TestComparePassive(t *testing.T) {
	want := passivePeer()
	if got := compare(passivePeer(), want, false, 0); got != nextSession {
		t.Errorf("changed password: compare = %d, want nextSession", got)
	}
	want.PasswordSecret = "other"
	if got := compare(passivePeer(), want, false, 0); got != nextSession {
		t.Errorf("changed Secret: compare = %d, want nextSession", got)
	}
	if got := compare(testPeer(), want, false, 0); got != reconnect {
		t.Errorf("changed passive mode: compare = %d, want reconnect", got)
	}
}

// One node has turn zero, shares are bounded, and the order is the same on all nodes.
func TestResetDelay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.Uint16Range(1, 4000), 1, 300, rapid.ID[uint16]).Draw(t, "ids")
		var nodes []forwarding.NodeID
		for _, id := range ids {
			nodes = append(nodes, forwarding.NodeID(id))
		}
		at := map[time.Duration]int{}
		for i, node := range nodes {
			turn := Turn("peer", node, nodes)
			rotated := append(append([]forwarding.NodeID{}, nodes[i:]...), nodes[:i]...)
			if again := Turn("peer", node, rotated); again != turn {
				t.Fatalf("node %d: Turn = %s, but %s for another order of nodes", node, turn, again)
			}
			if turn < 0 || turn >= turns*turnInterval || turn%turnInterval != 0 {
				t.Fatalf("node %d: Turn = %s", node, turn)
			}
			at[turn]++
		}
		if at[0] == 0 {
			t.Fatal("no node has turn 0")
		}
		for turn, count := range at {
			if most := (len(nodes) + turns - 1) / turns; count > most {
				t.Fatalf("%d of %d nodes have the turn %s, want at most %d", count, len(nodes), turn, most)
			}
		}
	})
}

// Edits of session parameters apply to the next session. Edits that need a reset lose no route and wait for
// the node's turn.
func TestPeerEdits(t *testing.T) {
	l := newLab(t, staticNeighbor)
	p := l.speaker("fresh")
	want := testWant(testRoute(vip4), testRoute(vip6))
	p.set(want)
	l.awaitRoutes(20*time.Second, both)
	before, first := l.neighborState(), p.session(peerName)

	edited := testPeer()
	edited.HoldTime, edited.KeepaliveTime, edited.ConnectRetryTime, edited.RestartTime =
		12*time.Second, 4*time.Second, 2*time.Second, 90*time.Second
	want.Peers = []model.Peer{edited}
	p.set(want)
	l.Run("ip", "netns", "exec", l.NodeSpace, "ss", "--kill", "--tcp", "dst", routerIPv4.String())
	l.awaitAgain(p, first)
	if after := l.neighborState(); after.Established != before.Established+1 {
		t.Fatalf("sessions %+v, then %+v: want one more, after the lost connection", before, after)
	}
	if got := l.holdTime(); got != 12*time.Second {
		t.Errorf("hold time of the next session = %s", got)
	}

	second := p.session(peerName)
	edited.MultiHopTTL = 3
	want.Peers = []model.Peer{edited}
	want.Turn = map[string]time.Duration{peerName: time.Hour}
	p.set(want)
	if session := p.session(peerName); session.Due.Before(time.Now().Add(time.Minute)) || !session.Since.Equal(second.Since) {
		t.Errorf("before the turn of the node: session %+v", session)
	}
	// Other edits apply immediately to the current session.
	want.Routes = announce.Routes{peerName: {testRoute(vip6)}}
	p.set(want)
	l.awaitRoutes(5*time.Second, map[string]string{vip6: nodeIPv6.String()})
	want.Routes = announce.Routes{peerName: {testRoute(vip4), testRoute(vip6)}}
	p.set(want)
	l.awaitRoutes(5*time.Second, both)

	// Reverting the edit cancels the reset.
	want.Peers[0].MultiHopTTL = 0
	p.set(want)
	if session := p.session(peerName); !session.Due.IsZero() || !session.Since.Equal(second.Since) {
		t.Errorf("after the edit was reverted: session %+v", session)
	}
	want.Peers[0].MultiHopTTL, want.Turn = 3, nil
	p.set(want)
	l.awaitAgain(p, second)
	if session := p.session(peerName); !session.Due.IsZero() {
		t.Errorf("after the turn of the node: session %+v", session)
	}
}

// A peer with another name or range and the same router takes over the session and its routes.
func TestPeerReplaced(t *testing.T) {
	l := newLab(t, staticNeighbor)
	p := l.speaker("fresh")
	want := testWant(testRoute(vip4), testRoute(vip6))
	p.set(want)
	l.awaitRoutes(20*time.Second, both)
	before, first := l.neighborState(), p.session(peerName)
	of := ""
	set := func(name string, routes ...announce.Route) {
		t.Helper()
		peer := testPeer()
		peer.Name, peer.HoldTime, peer.IPv6, peer.ASN = name, time.Duration(10+len(name))*time.Second, len(routes) > 1, 0
		peer.OfRange, peer.Passive = of, of != ""
		want.Peers, want.Routes = []model.Peer{peer}, announce.Routes{name: routes}
		p.set(want)
		session := p.session(name)
		if session.State != millracev1beta1.SessionEstablished || !session.Since.Equal(first.Since) || session.Routes != len(routes) {
			t.Errorf("LBPeer %s: session %+v, previously %+v", name, session, first)
		}
	}
	set("other", testRoute(vip4), testRoute(vip6))
	set("another", testRoute(vip4))
	l.awaitRoutes(5*time.Second, map[string]string{vip4: nodeIPv4.String()})
	want.Peers, want.Ranges = nil, []model.Range{{
		Name: "rack", Prefix: netip.MustParsePrefix("198.51.100.0/28"), MaxSessions: 1, Session: passivePeer(),
	}}
	p.set(want)
	if found := p.call(nil).DynamicNeighbors; !slices.Equal(found, []netip.Addr{routerIPv4}) {
		t.Errorf("DynamicNeighbors = %v, want the router", found)
	}
	of = "rack"
	set("rack/"+routerIPv4.String(), testRoute(vip4))
	if after := l.neighborState(); after != before {
		t.Errorf("sessions %+v, then %+v", before, after)
	}
}

// awaitAgain awaits another session and fails if a route is lost meanwhile.
func (l *lab) awaitAgain(p *process, before Session) {
	l.t.Helper()
	l.Await(20*time.Second, "session established again", func() bool {
		if routes := l.KernelRoutes(); !maps.Equal(routes, both) {
			l.t.Fatalf("the router lost routes: %v", routes)
		}
		session := p.session(peerName)
		return session.State == millracev1beta1.SessionEstablished && session.Since.After(before.Since)
	})
}

func (l *lab) holdTime() time.Duration {
	l.t.Helper()
	var neighbors map[string]struct {
		HoldTime int `json:"bgpTimerHoldTimeMsecs"`
	}
	l.Show("show bgp neighbors json", &neighbors)
	return time.Duration(neighbors[nodeIPv4.String()].HoldTime) * time.Millisecond
}

// A session is not reset while another session of the node is down.
func TestOneSessionAtATime(t *testing.T) {
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

	want.Peers[0].MultiHopTTL, want.Peers[1].MultiHopTTL = 2, 2
	p.set(want)
	l.Await(40*time.Second, "both sessions made again, one after the other", func() bool {
		p.set(want)
		one, two := p.session(peerName), p.session("other")
		if one.State != millracev1beta1.SessionEstablished && two.State != millracev1beta1.SessionEstablished {
			t.Fatalf("both sessions are down: %+v, %+v", one, two)
		}
		return one.State == two.State && one.Flaps == 1 && two.Flaps == 1
	})
	l.awaitRoutes(0, both)
	if again := p.session(peerName); !again.Since.After(first.Since) {
		t.Errorf("session %+v, then %+v, want a new one", first, again)
	}
}
