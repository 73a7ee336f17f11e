// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
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
			t.Errorf("%s changed: equal is not %t both ways", name, test.want)
		}
	}
}

// Of two LBPeers with one router the second is refused.
func TestSameAddress(t *testing.T) {
	first, second, third := testPeer(), testPeer(), testPeer()
	first.Name, second.Name, third.Name, third.Port = "a", "b", "c", 1179
	taken, refused := distinct([]model.Peer{third, second, first})
	if len(taken) != 2 || taken["a"] != first || taken["c"] != third {
		t.Errorf("taken: %v", taken)
	}
	if len(refused) != 1 || refused["b"].Message == "" || refused["b"].State != millracev1beta1.SessionIdle {
		t.Errorf("refused: %+v", refused)
	}
}

func TestRouterID(t *testing.T) {
	if got := RouterID(nodeIPv4, nodeIPv6); got != nodeIPv4 {
		t.Errorf("of a node with IPv4: %s", got)
	}
	only6 := RouterID(netip.Addr{}, nodeIPv6)
	if !only6.Is4() || only6.IsUnspecified() || only6 != RouterID(netip.Addr{}, nodeIPv6) || only6 == RouterID(netip.Addr{}, routerIPv6) {
		t.Errorf("of a node with IPv6 only: %s", only6)
	}
	if got := RouterID(netip.Addr{}, netip.Addr{}); got.IsValid() {
		t.Errorf("of a node without address: %s", got)
	}
}

func TestNoRouterID(t *testing.T) {
	s := New(Config{Logger: logr.Discard()})
	want := testWant()
	want.RouterID = netip.Addr{}
	if err := s.Set(want); !errors.Is(err, ErrNoRouterID) {
		t.Errorf("error %v, want %v", err, ErrNoRouterID)
	}
	if err := s.Set(Want{}); err != nil {
		t.Errorf("nothing wanted: %v", err)
	}
}

func TestObserved(t *testing.T) {
	established, idle := millracev1beta1.SessionEstablished, millracev1beta1.SessionIdle
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	notified := 0
	o := newObserved(func() { notified++ })
	o.phase(millracev1beta1.SessionConnect)
	if got := o.session().State; got != millracev1beta1.SessionConnect {
		t.Errorf("while the transport connects: state %s", got)
	}
	o.enter(millracev1beta1.SessionOpenSent, at)
	o.phase("")
	if got := o.session().State; got != millracev1beta1.SessionOpenSent || notified != 0 {
		t.Errorf("connected: state %s, notified %d times", got, notified)
	}
	if ended := o.enter(established, at); ended != nothingEnded {
		t.Errorf("ended %d before it was established", ended)
	}
	o.fail("received NOTIFICATION")
	if session := o.session(); session.Message != "" || session.LastError != "received NOTIFICATION" {
		t.Errorf("established: %+v", session)
	}
	if ended := o.enter(idle, at.Add(time.Hour)); ended != sessionEnded || o.lastedFor() != time.Hour {
		t.Errorf("ended %d after %s, want the session after an hour", ended, o.lastedFor())
	}
	session := o.session()
	if session.Message != "received NOTIFICATION" || session.State != idle || !session.Since.Equal(at.Add(time.Hour)) || notified != 3 {
		t.Errorf("session %+v, notified %d times", session, notified)
	}
	o.enter(millracev1beta1.SessionActive, at.Add(2*time.Hour))
	if session := o.session(); !session.Since.Equal(at.Add(time.Hour)) || session.Flaps != 1 {
		t.Errorf("%+v, want since it was lost, and one flap", session)
	}
	for _, opening := range []millracev1beta1.SessionState{millracev1beta1.SessionOpenSent, millracev1beta1.SessionOpenConfirm} {
		o.enter(opening, at.Add(2*time.Hour))
		if ended := o.enter(idle, at.Add(2*time.Hour)); ended != attemptEnded || o.lastedFor() != time.Hour {
			t.Errorf("from %s to Idle: ended %d after %s", opening, ended, o.lastedFor())
		}
	}
	o.enter(established, at.Add(3*time.Hour))
	if session := o.session(); session.Message != "" || session.LastError == "" || !session.Since.Equal(at.Add(3*time.Hour)) {
		t.Errorf("established again: %+v", session)
	}
}

// Routes reports desired routes before the session is established.
func TestRoutesAndFamilies(t *testing.T) {
	s := New(Config{Logger: logr.Discard()})
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
			t.Errorf("told: %+v, want %+v", told, routes)
		}
	}
	if sessions := s.Sessions(); len(sessions) != 1 || !slices.Equal(sessions[0].Families, []string{"IPv4"}) {
		t.Errorf("sessions are %+v, want one with IPv4", sessions)
	}
}
