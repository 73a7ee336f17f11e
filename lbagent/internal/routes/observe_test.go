// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// TestAnnounced checks that a VIP is announced by its own route, by an aggregate or on a link.
func TestAnnounced(t *testing.T) {
	single, within, onLink, gone := netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("203.0.113.9"),
		netip.MustParseAddr("198.51.100.8"), netip.MustParseAddr("198.51.100.9")
	decisions := []announce.Decision{
		{VIP: single, Peers: []string{"r"}}, {VIP: within, Peers: []string{"r"}}, {VIP: onLink, Interfaces: []string{"eth0"}}, {VIP: gone},
	}
	prefixes := &announce.Prefixes{}
	prefixes.Add(netip.MustParsePrefix("198.51.100.7/32"))
	prefixes.Add(netip.MustParsePrefix("203.0.113.0/24"))
	want := map[netip.Addr]bool{single: true, within: true, onLink: true, gone: false}
	if got := announced(decisions, prefixes); !maps.Equal(got, want) {
		t.Errorf("announced = %v, want %v", got, want)
	}
}

// TestWithhold checks the reported families of sessions on a node with an IPv4 address only.
func TestWithhold(t *testing.T) {
	v4, v6 := millracev1beta1.FamilyIPv4, millracev1beta1.FamilyIPv6
	hops := model.NextHops{IPv4: netip.MustParseAddr("192.0.2.1")}
	m := &model.Model{
		Peers:    []model.Peer{{Name: "both", IPv4: true, IPv6: true}, {Name: "extended", IPv4: true, IPv6: true, ExtendedNextHop: true}, {Name: "v4", IPv4: true}},
		NextHops: map[string]model.NextHops{"both": hops, "extended": hops, "v4": hops},
	}
	const none = "routes are withheld: neither the LBNode of this node nor an interface to the router has a next hop for them"
	for _, test := range []struct {
		name, peer, message string
		state               millracev1beta1.SessionState
		withheld, want      []millracev1beta1.AddressFamily
		wantMessage         string
	}{
		{"both families", "both", "", millracev1beta1.SessionEstablished, nil, []millracev1beta1.AddressFamily{v6}, "IPv6 " + none},
		{"not established", "both", "refused", millracev1beta1.SessionActive, nil, nil, "refused"},
		{"IPv4 routes with IPv6 next hops", "extended", "", millracev1beta1.SessionEstablished, nil, []millracev1beta1.AddressFamily{v4, v6}, "IPv4 " + none + "; IPv6 " + none},
		{"already withheld", "both", "not offered", millracev1beta1.SessionEstablished, []millracev1beta1.AddressFamily{v6}, []millracev1beta1.AddressFamily{v6}, "not offered"},
		{"one family", "v4", "", millracev1beta1.SessionEstablished, nil, nil, ""},
		{"deleted peer", "gone", "", millracev1beta1.SessionEstablished, nil, nil, ""},
	} {
		session := millracev1beta1.SessionStatus{Peer: test.peer, State: test.state, Withheld: test.withheld, Message: test.message}
		withhold(m, &session)
		if !slices.Equal(session.Withheld, test.want) || session.Message != test.wantMessage {
			t.Errorf("%s: withheld = %v, %q, want %v, %q", test.name, session.Withheld, session.Message, test.want, test.wantMessage)
		}
	}
}
