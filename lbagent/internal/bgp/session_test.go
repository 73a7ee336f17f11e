// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
)

func TestEqual(t *testing.T) {
	hundred, alsoHundred, other := uint32(100), uint32(100), uint32(101)
	base := func() announce.Route {
		route := testRoute(vip4)
		route.Communities = []uint32{1}
		route.LargeCommunities = [][3]uint32{{1, 2, 3}}
		route.LocalPreference = &hundred
		return route
	}
	for name, test := range map[string]struct {
		change func(*announce.Route)
		want   bool
	}{
		"nothing":          {func(*announce.Route) {}, true},
		"same preference":  {func(r *announce.Route) { r.LocalPreference = &alsoHundred }, true},
		"other preference": {func(r *announce.Route) { r.LocalPreference = &other }, false},
		"no preference":    {func(r *announce.Route) { r.LocalPreference = nil }, false},
		"next hop":         {func(r *announce.Route) { r.NextHop = routerIPv4 }, false},
		"communities":      {func(r *announce.Route) { r.Communities = nil }, false},
		"MED":              {func(r *announce.Route) { r.MED = &other }, false},
		"prepend":          {func(r *announce.Route) { r.Prepend = 1 }, false},
		"weight":           {func(r *announce.Route) { r.Weight = 1 }, false},
		"extended":         {func(r *announce.Route) { r.ExtendedCommunities = []desired.ExtendedCommunity{{ASN: 1}} }, false},
		"large":            {func(r *announce.Route) { r.LargeCommunities = [][3]uint32{{1, 2, 4}} }, false},
	} {
		before, changed := base(), base()
		test.change(&changed)
		if before.Equal(&changed) != test.want || changed.Equal(&before) != test.want {
			t.Errorf("%s changed: Equal is not %t in both directions", name, test.want)
		}
	}
}

// sessionOf returns the session of a peer.
func (s *Server) sessionOf(peer string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.sessions {
		if session.peer.Name == peer {
			return session
		}
	}
	return nil
}

func TestRouterID(t *testing.T) {
	if got := RouterID(nodeIPv4, nodeIPv6); got != nodeIPv4 {
		t.Errorf("node with IPv4: RouterID = %s", got)
	}
	only6 := RouterID(netip.Addr{}, nodeIPv6)
	if !only6.Is4() || only6.IsUnspecified() || only6 != RouterID(netip.Addr{}, nodeIPv6) || only6 == RouterID(netip.Addr{}, routerIPv6) {
		t.Errorf("node with IPv6 only: RouterID = %s", only6)
	}
	if got := RouterID(netip.Addr{}, netip.Addr{}); got.IsValid() {
		t.Errorf("node without addresses: RouterID = %s", got)
	}
}

// A reason replaces reasons of the same or a lower rank until the session is established or edited.
func TestObserved(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	notified := 0
	o := newObserved(func() { notified++ })
	for _, s := range []state{stateConnect, stateOpenSent, stateOpenConfirm} {
		o.enter(s, at)
		if got := o.session().State; got != stateNames[s] || notified != 0 {
			t.Errorf("state %s, notified %d times", got, notified)
		}
	}
	o.enter(stateEstablished, at)
	o.fail(rankProtocol, "received NOTIFICATION")
	if session := o.session(); session.Message != "" || session.LastError != "received NOTIFICATION" {
		t.Errorf("after establishment: %+v", session)
	}
	o.enter(stateIdle, at.Add(time.Hour))
	session := o.session()
	if session.Message != "received NOTIFICATION" || session.State != millracev1beta1.SessionIdle || session.Flaps != 1 ||
		!session.Since.Equal(at.Add(time.Hour)) || o.lastedFor() != time.Hour || notified != 3 {
		t.Errorf("session %+v, notified %d times", session, notified)
	}
	o.fail(rankTransport, "the connection was reset")
	if got := o.session().Message; got != "received NOTIFICATION" || notified != 3 {
		t.Errorf("the reason reported by the router was replaced by %q", got)
	}
	o.fail(rankProtocol, "another NOTIFICATION")
	if got := o.session().Message; got != "another NOTIFICATION" {
		t.Errorf("the next reason of the router is not reported, but %q", got)
	}
	o.edited()
	o.fail(rankTransport, "no answer")
	if got := o.session().Message; got != "no answer" {
		t.Errorf("after an edit: message %q", got)
	}
	o.fail(rankProtocol, "a NOTIFICATION")
	o.enter(stateEstablished, at.Add(3*time.Hour))
	o.fail(rankTransport, "the connection was reset")
	if session := o.session(); session.Message != "" || session.LastError != "the connection was reset" || !session.Since.Equal(at.Add(3*time.Hour)) {
		t.Errorf("after re-establishment: %+v", session)
	}
}

// The router's reason remains while it closes connections without one, until the session is up.
func TestReasonRemains(t *testing.T) {
	t.Parallel()
	const reason = "Wartung Rack 7"
	var back atomic.Bool
	r := newRawRouter(t, func(n int, conn *rawConn) {
		switch {
		case back.Load():
			conn.behave()
		case n == 0:
			_, _ = conn.Write(slices.Concat(openMessage(t, 64500), keepalive))
			conn.await(bgp.BGP_MSG_UPDATE)
			_, _ = conn.Write(encode(bgp.BGP_MSG_NOTIFICATION, append([]byte{6, 2, byte(len(reason))}, reason...)...))
			conn.drain()
		}
	})
	s := serving(t, r.peer(peerName))
	for deadline := time.Now().Add(20 * time.Second); r.connections.Load() < 4; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections", r.connections.Load())
		}
	}
	if session := s.Sessions()[0]; !tells(reason)(session) {
		t.Errorf("session %+v", session)
	}
	back.Store(true)
	awaitSession(t, s, 20*time.Second, "up", func(session Session) bool { return isUp(session) && session.Message == "" })
}

// A router that requires a role receives the matching role (RFC 9234).
func TestRole(t *testing.T) {
	l := newLab(t, strings.Replace(staticNeighbor, " address-family", " neighbor 198.51.100.2 local-role provider strict-mode\n address-family", 1))
	p := l.speaker("fresh")
	p.set(testWant(testRoute(vip4), testRoute(vip6)))
	l.awaitRoutes(20*time.Second, both)
	if session := p.session(peerName); !strings.Contains(session.LastError, "Role Mismatch") || session.Flaps != 0 {
		t.Errorf("session %+v, want one connection attempt without a role", session)
	}
}

// Routes reports desired routes before the session is established.
func TestRoutesAndFamilies(t *testing.T) {
	s := New(Config{})
	want := testWant(testRoute(vip4))
	// A closed port.
	want.Peers[0].Address, want.Peers[0].Port, want.Peers[0].IPv6 = netip.MustParseAddr("127.0.0.1"), 1, false
	t.Cleanup(func() {
		if err := s.Set(Want{}); err != nil {
			t.Error(err)
		}
	})
	for _, routes := range [][]announce.Route{{testRoute(vip4)}, {}} {
		want.Routes[peerName] = routes
		if err := s.Set(want); err != nil {
			t.Fatal(err)
		}
		told := s.Routes()
		if len(told) != 1 || len(told[peerName]) != len(routes) || len(routes) > 0 && !told[peerName][0].Equal(&routes[0]) {
			t.Errorf("sent %+v, want %+v", told, routes)
		}
	}
	if sessions := s.Sessions(); len(sessions) != 1 || !slices.Equal(sessions[0].Families, []string{"IPv4"}) {
		t.Errorf("sessions %+v, want one with IPv4", sessions)
	}
}

// The message of an established session is that of the rate limit until throttledFor has passed since the last
// messages that were left unread.
func TestThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{}).newSession(testPeer(), "", nodeIPv4)
		s.observed.enter(stateEstablished, time.Now())
		for _, step := range []struct {
			unread, passes time.Duration
			throttled      bool
		}{
			{0, 0, false}, {time.Millisecond, 0, true}, {0, throttledFor / 2, true}, {time.Millisecond, throttledFor - time.Second, true},
			{0, time.Second, false},
		} {
			s.throttle(step.unread)
			time.Sleep(step.passes)
			synctest.Wait()
			if got := s.snapshot(); strings.Contains(got.Message, "rate limit") != step.throttled {
				t.Errorf("%+v: %+v", step, got)
			}
		}
		if got := s.snapshot().Throttled; got != 2*time.Millisecond {
			t.Errorf("Throttled = %s, want 2ms", got)
		}
	})
}
