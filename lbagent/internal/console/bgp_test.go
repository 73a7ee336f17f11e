// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
)

type talking struct{}

var sessionBegan = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func (talking) Sessions() []bgp.Session {
	return []bgp.Session{
		{
			Peer: "r1", Address: netip.MustParseAddr("198.51.100.1"), State: millracev1beta1.SessionEstablished, Since: sessionBegan,
			LastError: "Hold Timer Expired", LastErrorTime: sessionBegan.Add(-time.Second), Flaps: 1, Families: []string{"IPv4"},
			Routes: 2, UpdatesSent: 3, UpdatesReceived: 4, Local: netip.MustParseAddr("198.51.100.9"),
		},
		{Peer: "r2", Address: netip.MustParseAddr("2001:db8::2"), State: millracev1beta1.SessionActive, Message: "no answer"},
	}
}

func (talking) Routes() announce.Routes {
	preference := uint32(200)
	return announce.Routes{
		"r2": {{Prefix: netip.MustParsePrefix("203.0.113.1/32"), NextHop: netip.MustParseAddr("198.51.100.9")}},
		"r1": {
			{Prefix: netip.MustParsePrefix("203.0.113.2/32"), NextHop: netip.MustParseAddr("198.51.100.9")},
			{
				Prefix: netip.MustParsePrefix("203.0.113.1/32"), NextHop: netip.MustParseAddr("198.51.100.9"),
				Communities: []uint32{64512<<16 | 100}, LargeCommunities: [][3]uint32{{64512, 1, 2}},
				ExtendedCommunities: []desired.ExtendedCommunity{
					{Subtype: desired.RouteTarget, ASN: 64512, Value: 7}, {Subtype: desired.SiteOfOrigin, ASN: 64512, Value: 8},
				},
				LocalPreference: &preference, Prepend: 1, Weight: 5,
			},
		},
	}
}

func askBGP(t *testing.T, r *rig, command Command) *consoleapi.BGP {
	t.Helper()
	lines, err := r.ask(t, Request{Command: command})
	if err != nil || len(lines) != 1 || lines[0].BGP == nil {
		t.Fatalf("%+v, %v", lines, err)
	}
	return lines[0].BGP
}

func TestBGPPeers(t *testing.T) {
	r := newRig(t, &plane{})
	first := consoleapi.BGPPeer{
		Peer: "r1", Address: netip.MustParseAddr("198.51.100.1"), LocalAddress: netip.MustParseAddr("198.51.100.9"),
		State: "Established", Since: sessionBegan, LastError: "Hold Timer Expired", LastErrorTime: sessionBegan.Add(-time.Second),
		Flaps: 1, Families: []string{"IPv4"}, RoutesSent: 2, UpdatesSent: 3, UpdatesReceived: 4,
	}
	second := consoleapi.BGPPeer{Peer: "r2", Address: netip.MustParseAddr("2001:db8::2"), State: "Active", LastError: "no answer"}
	want := &consoleapi.BGP{Node: "node1", Peers: []consoleapi.BGPPeer{first, second}}
	if diff := cmp.Diff(want, askBGP(t, r, BGPPeers), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("before the first pass: %s", diff)
	}
	r.decisions.Store(&Decisions{Sessions: []millracev1beta1.SessionStatus{{
		Peer: "r2", BFD: &millracev1beta1.BFDStatus{State: "Down", Message: "no packet came"},
	}}})
	want.Peers[1].BFD, want.Peers[1].BFDMessage = "Down", "no packet came"
	if diff := cmp.Diff(want, askBGP(t, r, BGPPeers), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("with BFD: %s", diff)
	}
}

func TestBGPRoutes(t *testing.T) {
	r := newRig(t, &plane{})
	hop, preference := netip.MustParseAddr("198.51.100.9"), uint32(200)
	one, two := netip.MustParsePrefix("203.0.113.1/32"), netip.MustParsePrefix("203.0.113.2/32")
	want := &consoleapi.BGP{Node: "node1", Routes: []consoleapi.BGPRoute{
		{
			Prefix: one, Peer: "r1", NextHop: hop, Established: true, LocalPreference: &preference, Prepend: 1, Weight: 5,
			Communities: []string{"64512:100", "64512:1:2", "rt:64512:7", "soo:64512:8"},
		},
		{Prefix: one, Peer: "r2", NextHop: hop},
		{Prefix: two, Peer: "r1", NextHop: hop, Established: true},
	}}
	if diff := cmp.Diff(want, askBGP(t, r, BGPRoutes), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Error(diff)
	}
}
