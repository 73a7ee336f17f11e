// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// openMessage returns a router's OPEN with a four-octet AS number and both families.
func openMessage(t testing.TB, asn uint32) []byte {
	t.Helper()
	capabilities := []bgp.ParameterCapabilityInterface{
		bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC), bgp.NewCapMultiProtocol(bgp.RF_IPv6_UC), bgp.NewCapFourOctetASNumber(asn),
	}
	open := bgp.NewBGPOpenMessage(bgp.AS_TRANS, 90, "198.51.100.1",
		[]bgp.OptionParameterInterface{bgp.NewOptionParameterCapability(capabilities)})
	message, err := open.Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return message
}

func updateMessage(t testing.TB, prefix string) []byte {
	t.Helper()
	p := netip.MustParsePrefix(prefix)
	message, err := bgp.NewBGPUpdateMessage(nil, []bgp.PathAttributeInterface{
		bgp.NewPathAttributeOrigin(0),
		bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{bgp.NewAs4PathParam(2, []uint32{64500})}),
		bgp.NewPathAttributeNextHop("198.51.100.1"),
	}, []*bgp.IPAddrPrefix{bgp.NewIPAddrPrefix(uint8(p.Bits()), p.Addr().String())}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return message
}

func endOfRIB(t testing.TB, family bgp.RouteFamily) []byte {
	t.Helper()
	message, err := bgp.NewEndOfRib(family).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return message
}

// converse passes a router's messages to a state machine that has sent its OPEN.
func converse(messages [][]byte, peer *model.Peer) (state, received, error) {
	s := stateOpenSent
	var r received
	for _, message := range messages {
		var err error
		r, err = parseMessage(message, s, peer, nodeIPv4)
		before, t := s, s.on(r.event)
		s = t.next
		if err == nil && t.do&sendNotification != 0 {
			err = unexpected(before)
		}
		if err != nil || s == stateIdle {
			return s, r, err
		}
	}
	return s, r, nil
}

// Each state accepts the expected messages and refuses others.
func TestMessages(t *testing.T) {
	open := openMessage(t, 64500)
	update, refresh := updateMessage(t, "203.0.113.0/24"), refreshOf(1, 0, 1)
	for name, test := range map[string]struct {
		messages      [][]byte
		state         state
		code, subcode byte
		refresh       families
	}{
		"open":                              {[][]byte{open}, stateOpenConfirm, 0, 0, families{}},
		"OPEN with a wrong AS":              {[][]byte{openMessage(t, 64501)}, stateIdle, 2, 2, families{}},
		"OPEN too short":                    {[][]byte{encode(bgp.BGP_MSG_OPEN, 4)}, stateIdle, 1, 2, families{}},
		"two OPENs":                         {[][]byte{open, open}, stateIdle, 5, 2, families{}},
		"OPEN in an established session":    {[][]byte{open, keepalive, open}, stateIdle, 5, 3, families{}},
		"UPDATE first":                      {[][]byte{update}, stateIdle, 5, 1, families{}},
		"UPDATE before KEEPALIVE":           {[][]byte{open, update}, stateIdle, 5, 2, families{}},
		"keepalive":                         {[][]byte{open, keepalive}, stateEstablished, 0, 0, families{}},
		"update":                            {[][]byte{open, keepalive, update}, stateEstablished, 0, 0, families{}},
		"end of RIB":                        {[][]byte{open, keepalive, endOfRIB(t, bgp.RF_IPv4_UC)}, stateEstablished, 0, 0, families{}},
		"refresh":                           {[][]byte{open, keepalive, refresh}, stateEstablished, 0, 0, families{ipv4: true}},
		"ROUTE-REFRESH for IPv6":            {[][]byte{open, keepalive, refreshOf(2, 0, 1)}, stateEstablished, 0, 0, families{ipv6: true}},
		"ROUTE-REFRESH for multicast":       {[][]byte{open, keepalive, refreshOf(1, 0, 2)}, stateEstablished, 0, 0, families{}},
		"ROUTE-REFRESH before OPEN":         {[][]byte{refresh}, stateIdle, 5, 1, families{ipv4: true}},
		"demarcation":                       {[][]byte{open, keepalive, refreshOf(1, 1, 1)}, stateEstablished, 0, 0, families{}},
		"ROUTE-REFRESH with invalid length": {[][]byte{open, keepalive, append(refresh, 0)}, stateIdle, 1, 2, families{}},
		"NOTIFICATION first":                {[][]byte{encode(bgp.BGP_MSG_NOTIFICATION, 6, 5)}, stateIdle, 0, 0, families{}},
		"empty NOTIFICATION":                {[][]byte{encode(bgp.BGP_MSG_NOTIFICATION)}, stateIdle, 1, 2, families{}},
		"unknown type":                      {[][]byte{open, keepalive, encode(9)}, stateIdle, 1, 3, families{}},
	} {
		peer := testPeer()
		s, r, err := converse(test.messages, &peer)
		var refused *protocolError
		errors.As(err, &refused)
		switch {
		case test.code == 0 && err != nil, test.code != 0 && refused == nil:
			t.Errorf("%s: error %v", name, err)
		case refused != nil && (refused.code != test.code || refused.subcode != test.subcode):
			t.Errorf("%s: NOTIFICATION %d/%d, want %d/%d", name, refused.code, refused.subcode, test.code, test.subcode)
		case s != test.state || r.refresh != test.refresh:
			t.Errorf("%s: state %s, refresh %+v", name, s, r.refresh)
		}
	}
}

func TestDescribeNotification(t *testing.T) {
	for want, body := range map[string][]byte{
		`NOTIFICATION Cease: Administrative Shutdown "back at noon"`: append([]byte{6, 2, 12}, "back at noon"...),
		"NOTIFICATION Cease: Administrative Shutdown":                {6, 2, 200, 'x'},
		"NOTIFICATION Hold Timer Expired":                            {4, 0},
		"NOTIFICATION OPEN Message Error: Bad Peer AS":               {2, 2},
		"NOTIFICATION Cease: subcode 77":                             {6, 77},
		"NOTIFICATION code 99 subcode 1":                             {99, 1},
		"NOTIFICATION without a code":                                {6},
	} {
		if got := describeNotification(encode(bgp.BGP_MSG_NOTIFICATION, body...)); got != want {
			t.Errorf("%v: %q, want %q", body, got, want)
		}
	}
}

// No input panics. Errors have a text and a NOTIFICATION that GoBGP parses.
func FuzzMessages(f *testing.F) {
	open := openMessage(f, 64500)
	f.Add(bytes.Join([][]byte{open, keepalive, updateMessage(f, "203.0.113.0/24"), endOfRIB(f, bgp.RF_IPv6_UC)}, nil))
	f.Add(bytes.Join([][]byte{open, keepalive, open}, nil))
	f.Add(bytes.Join([][]byte{open, keepalive, refreshOf(1, 0, 1)}, nil))
	f.Add(encode(bgp.BGP_MSG_NOTIFICATION, 6, 2, 3, 'b', 'y', 'e'))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	for _, o := range slices.Concat(oddOpens, oddSessions) {
		f.Add(slices.Concat(o.says, keepalive, o.then))
		f.Add(slices.Concat(open, keepalive, o.then))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		reader, buffer := bytes.NewReader(stream), make([]byte, maxMessageLength)
		peer := testPeer()
		for s := stateOpenSent; s != stateIdle; {
			message, err := readMessage(reader, buffer)
			if err != nil {
				return
			}
			before := s
			r, err := parseMessage(message, s, &peer, nodeIPv4)
			s = s.on(r.event).next
			if r.event == notificationReceived {
				_ = describeNotification(message) + hintFor(message)
			}
			if refused := (*protocolError)(nil); errors.As(err, &refused) {
				if _, err := bgp.ParseBGPMessage(refused.notification()); err != nil || refused.Error() == "" {
					t.Errorf("NOTIFICATION %x of %q: %v", refused.notification(), refused, err)
				}
			} else if err != nil {
				t.Errorf("error without a NOTIFICATION: %v", err)
			}
			if s == stateOpenConfirm && before == stateOpenSent && r.open.common(&peer) == (families{}) {
				t.Error("an OPEN without a common address family was accepted")
			}
		}
	})
}

// No content of an OPEN panics, and valid ones have a valid AS number, hold time and identifier.
func FuzzOpen(f *testing.F) {
	for _, o := range oddOpens {
		f.Add(o.says[min(headerLength, len(o.says)):])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		peer := testPeer()
		open, err := parseOpen(encode(bgp.BGP_MSG_OPEN, body...))
		if err == nil {
			err = open.check(&peer, nodeIPv4)
		}
		if err == nil && (open.asn != peer.ASN || open.holdTime < minHoldTime || !open.id.Is4() || open.common(&peer) == (families{})) {
			t.Errorf("invalid OPEN %+v was accepted", open)
		}
	})
}
