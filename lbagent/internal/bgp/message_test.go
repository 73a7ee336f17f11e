// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

// openMessage is a router's OPEN with a four-octet system.
func openMessage(t testing.TB, asn uint32) []byte {
	t.Helper()
	capabilities := []bgp.ParameterCapabilityInterface{
		bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC), bgp.NewCapFourOctetASNumber(asn),
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

// Each step of a session lets pass what GoBGP expects there, and refuses the rest.
func TestInbound(t *testing.T) {
	open, keepalive := openMessage(t, 64500), encode(bgp.BGP_MSG_KEEPALIVE)
	update, refresh := updateMessage(t, "203.0.113.0/24"), encode(bgp.BGP_MSG_ROUTE_REFRESH, 0, 1, 0, 1)
	for name, test := range map[string]struct {
		messages [][]byte
		accepts  func(uint32) error
		pass     bool
		code     byte
		subcode  byte
	}{
		"open":                    {[][]byte{open}, nil, true, 0, 0},
		"open of a wrong system":  {[][]byte{open}, func(uint32) error { return errors.New("no") }, false, 2, 2},
		"open that is too short":  {[][]byte{encode(bgp.BGP_MSG_OPEN, 4)}, nil, false, 2, 0},
		"open twice":              {[][]byte{open, keepalive, open}, nil, false, 5, 3},
		"update first":            {[][]byte{update}, nil, false, 5, 1},
		"update before keepalive": {[][]byte{open, update}, nil, false, 5, 2},
		"update":                  {[][]byte{open, keepalive, update}, nil, false, 0, 0},
		"end of RIB":              {[][]byte{open, keepalive, endOfRIB(t, bgp.RF_IPv4_UC)}, nil, true, 0, 0},
		"end of RIB of IPv6":      {[][]byte{open, keepalive, endOfRIB(t, bgp.RF_IPv6_UC)}, nil, true, 0, 0},
		"refresh":                 {[][]byte{open, keepalive, refresh}, nil, true, 0, 0},
		"refresh of any length":   {[][]byte{open, keepalive, append(refresh, 0)}, nil, false, 1, 2},
		"notification first":      {[][]byte{encode(bgp.BGP_MSG_NOTIFICATION, 6, 5)}, nil, true, 0, 0},
		"empty notification":      {[][]byte{encode(bgp.BGP_MSG_NOTIFICATION)}, nil, false, 1, 2},
		"unknown type":            {[][]byte{open, keepalive, encode(9)}, nil, false, 5, 3},
	} {
		filter := inbound{accepts: test.accepts}
		var pass bool
		var err error
		for i, message := range test.messages {
			if pass, err = filter.check(message); err != nil && i < len(test.messages)-1 {
				t.Errorf("%s: message %d: %v", name, i, err)
			}
		}
		var refused *protocolError
		errors.As(err, &refused)
		switch {
		case test.code == 0 && err != nil, test.code != 0 && refused == nil:
			t.Errorf("%s: error %v", name, err)
		case refused != nil && (refused.code != test.code || refused.subcode != test.subcode):
			t.Errorf("%s: NOTIFICATION %d/%d, want %d/%d", name, refused.code, refused.subcode, test.code, test.subcode)
		case pass != test.pass:
			t.Errorf("%s: passes: %t", name, pass)
		}
	}
	filter := inbound{accepts: func(asn uint32) error {
		if asn != 4200000001 {
			t.Errorf("AS%d, want 4200000001", asn)
		}
		return nil
	}}
	if _, err := filter.check(openMessage(t, 4200000001)); err != nil {
		t.Error(err)
	}
}

func TestDescribeNotification(t *testing.T) {
	for want, body := range map[string][]byte{
		`NOTIFICATION Cease: Administrative Shutdown "back at noon"`:                         append([]byte{6, 2, 12}, "back at noon"...),
		"NOTIFICATION Cease: Administrative Shutdown":                                        {6, 2, 200, 'x'},
		"NOTIFICATION Hold Timer Expired":                                                    {4, 0},
		"NOTIFICATION OPEN Message Error: Bad Peer AS (the router expects another localASN)": {2, 2},
		"NOTIFICATION Cease: subcode 77":                                                     {6, 77},
		"NOTIFICATION code 99 subcode 1":                                                     {99, 1},
		"NOTIFICATION without a code":                                                        {6},
	} {
		if got := describeNotification(encode(bgp.BGP_MSG_NOTIFICATION, body...)); got != want {
			t.Errorf("%v: %q, want %q", body, got, want)
		}
	}
}

// Whatever a router sends, nothing panics, what passes can be read by GoBGP's own parser, and
// no OPEN passes twice.
func FuzzInbound(f *testing.F) {
	open, keepalive := openMessage(f, 64500), encode(bgp.BGP_MSG_KEEPALIVE)
	f.Add(bytes.Join([][]byte{open, keepalive, updateMessage(f, "203.0.113.0/24"), endOfRIB(f, bgp.RF_IPv6_UC)}, nil))
	f.Add(bytes.Join([][]byte{open, keepalive, open}, nil))
	f.Add(bytes.Join([][]byte{open, keepalive, encode(bgp.BGP_MSG_ROUTE_REFRESH, 0, 1, 0, 1)}, nil))
	f.Add(encode(bgp.BGP_MSG_NOTIFICATION, 6, 2, 3, 'b', 'y', 'e'))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		reader, buffer := bytes.NewReader(stream), make([]byte, longestLength)
		filter, opens := inbound{}, 0
		for {
			message, err := readMessage(reader, buffer)
			if err != nil {
				return
			}
			pass, err := filter.check(message)
			if err != nil {
				if len(err.Error()) == 0 {
					t.Error("an error without words")
				}
				return
			}
			if kindOf(message) == bgp.BGP_MSG_NOTIFICATION {
				_ = describeNotification(message)
			}
			if !pass {
				continue
			}
			if _, err := bgp.ParseBGPMessage(message); err != nil {
				t.Errorf("passes, and GoBGP cannot read it: %v: %x", err, message)
			}
			if kindOf(message) == bgp.BGP_MSG_OPEN {
				if opens++; opens > 1 {
					t.Error("a second OPEN passes")
				}
			}
		}
	})
}
