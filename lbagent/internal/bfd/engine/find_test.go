// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
)

const (
	own, peers, unknown = 7, 99, 5
	ms                  = time.Millisecond
)

var (
	peerAddress = netip.MustParseAddr("198.51.100.1")
	elsewhere   = netip.MustParseAddr("198.51.100.77")
)

func engineWith(t *testing.T, multihop, up bool) (*Engine, *session) {
	t.Helper()
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	parameters := bfd.Parameters{TransmitInterval: 100 * ms, ReceiveInterval: 100 * ms, DetectMultiplier: 3}
	peer := control.Peer{Name: "router", Address: peerAddress, Multihop: multihop, Parameters: parameters}
	if multihop {
		peer.MinimumTTL = 250
	}
	now := time.Now()
	if err := e.add(peer, bfd.NewSession(parameters, own, func() float64 { return 0.5 }, now)); err != nil {
		t.Fatal(err)
	}
	s := e.sessions["router"]
	if up {
		s.Receive(packet(bfd.Down, peers, 0), now)
		s.Receive(packet(bfd.Up, peers, own), now)
		if s.State() != bfd.Up {
			t.Fatalf("session state %s, want Up", s.State())
		}
	}
	return e, s
}

func packet(state bfd.State, mine, yours uint32) bfd.Packet {
	return bfd.Packet{
		State: state, DetectMultiplier: 3, MyDiscriminator: mine, YourDiscriminator: yours,
		DesiredMinTx: 100 * ms, RequiredMinRx: 100 * ms,
	}
}

// A packet is assigned by source until the session is up, and then by both discriminators from any source.
// Multihop sessions that are up require both.
func TestFind(t *testing.T) {
	for name, test := range map[string]struct {
		multihop, up bool
		from         netip.Addr
		ttl          int
		packet       bfd.Packet
		want         string
	}{
		"first packet":                                    {false, false, peerAddress, 255, packet(bfd.Down, peers, 0), ""},
		"first packet, multihop":                          {true, false, peerAddress, 250, packet(bfd.Down, peers, 0), ""},
		"reply, multihop":                                 {true, false, peerAddress, 250, packet(bfd.Init, peers, own), ""},
		"not on the link":                                 {false, true, peerAddress, 254, packet(bfd.Up, peers, own), "ttl"},
		"TTL too low, multihop":                           {true, true, peerAddress, 249, packet(bfd.Up, peers, own), "ttl"},
		"unknown peer":                                    {false, false, elsewhere, 255, packet(bfd.Down, peers, 0), "no_session"},
		"unknown discriminator":                           {false, true, peerAddress, 255, packet(bfd.Up, peers, unknown), "no_session"},
		"not up, other source":                            {false, false, elsewhere, 255, packet(bfd.Init, peers, own), "other_address"},
		"up, other source":                                {false, true, elsewhere, 255, packet(bfd.Up, peers, own), ""},
		"up, other source, multihop":                      {true, true, elsewhere, 250, packet(bfd.Up, peers, own), ""},
		"up, other source and discriminator":              {false, true, elsewhere, 255, packet(bfd.Down, unknown, own), "other_address"},
		"up, peer restarted":                              {false, true, peerAddress, 255, packet(bfd.Down, unknown, 0), ""},
		"spoofed Down, multihop":                          {true, true, peerAddress, 250, packet(bfd.Down, unknown, 0), "other_discriminator"},
		"spoofed AdminDown, multihop":                     {true, true, peerAddress, 250, packet(bfd.AdminDown, unknown, 0), "other_discriminator"},
		"spoofed Down with our discriminator":             {true, true, peerAddress, 250, packet(bfd.Down, unknown, own), "other_discriminator"},
		"spoofed Down with the discriminator of the peer": {true, true, peerAddress, 250, packet(bfd.Down, peers, 0), "other_discriminator"},
		"Down from the peer, multihop":                    {true, true, peerAddress, 250, packet(bfd.AdminDown, peers, own), ""},
		"Down from the peer, other source":                {true, true, elsewhere, 250, packet(bfd.Down, peers, own), ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, s := engineWith(t, test.multihop, test.up)
			d := datagram{payload: test.packet.Append(nil), from: test.from, ttl: test.ttl}
			found, _, reason := e.find(d, s.kind())
			if reason != test.want || (found == s) != (test.want == "") {
				t.Errorf("reason = %q, want %q", reason, test.want)
			}
		})
	}
}

// A peer with a new discriminator is accepted after the detection time.
func TestRestartedMultihopPeer(t *testing.T) {
	e, s := engineWith(t, true, true)
	d := datagram{payload: packet(bfd.Down, unknown, 0).Append(nil), from: peerAddress, ttl: 250}
	if _, _, reason := e.find(d, s.kind()); reason != "other_discriminator" {
		t.Fatalf("while the session is up: reason = %q", reason)
	}
	s.Session.Advance(time.Now().Add(time.Second))
	if found, _, reason := e.find(d, s.kind()); found != s {
		t.Errorf("after the detection time: reason = %q, session state %s", reason, s.State())
	}
}
