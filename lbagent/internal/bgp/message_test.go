// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
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

// Each state passes the expected messages and refuses others.
func TestInbound(t *testing.T) {
	open := openMessage(t, 64500)
	onlyIPv4 := withCapabilities(capIPv4, capFour)
	update, refresh := updateMessage(t, "203.0.113.0/24"), refreshOf(1, 0, 1)
	for name, test := range map[string]struct {
		messages [][]byte
		pass     bool
		code     byte
		subcode  byte
	}{
		"open":                        {[][]byte{open}, true, 0, 0},
		"open of a wrong system":      {[][]byte{openMessage(t, 64501)}, false, 2, 2},
		"open that is too short":      {[][]byte{encode(bgp.BGP_MSG_OPEN, 4)}, false, 1, 2},
		"open twice":                  {[][]byte{open, keepalive, open}, false, 5, 3},
		"update first":                {[][]byte{update}, false, 5, 1},
		"update before keepalive":     {[][]byte{open, update}, false, 5, 2},
		"update":                      {[][]byte{open, keepalive, update}, false, 0, 0},
		"end of RIB":                  {[][]byte{open, keepalive, endOfRIB(t, bgp.RF_IPv4_UC)}, true, 0, 0},
		"end of RIB of IPv6":          {[][]byte{open, keepalive, endOfRIB(t, bgp.RF_IPv6_UC)}, true, 0, 0},
		"end of RIB twice":            {[][]byte{open, keepalive, endOfRIB(t, bgp.RF_IPv6_UC), endOfRIB(t, bgp.RF_IPv6_UC)}, false, 0, 0},
		"end of RIB, family not open": {[][]byte{onlyIPv4, keepalive, endOfRIB(t, bgp.RF_IPv6_UC)}, false, 0, 0},
		"refresh":                     {[][]byte{open, keepalive, refresh}, true, 0, 0},
		"refresh, family not open":    {[][]byte{onlyIPv4, keepalive, refreshOf(2, 0, 1)}, false, 0, 0},
		"mark of enhanced refresh":    {[][]byte{open, keepalive, refreshOf(1, 1, 1)}, false, 0, 0},
		"refresh of any length":       {[][]byte{open, keepalive, append(refresh, 0)}, false, 1, 2},
		"notification first":          {[][]byte{encode(bgp.BGP_MSG_NOTIFICATION, 6, 5)}, true, 0, 0},
		"empty notification":          {[][]byte{encode(bgp.BGP_MSG_NOTIFICATION)}, false, 1, 2},
		"unknown type":                {[][]byte{open, keepalive, encode(9)}, false, 1, 3},
	} {
		peer := testPeer()
		filter := inbound{peer: &peer}
		var pass []byte
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
		case (pass != nil) != test.pass:
			t.Errorf("%s: passes: %x", name, pass)
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

// No input panics. Passed messages are complete, short and accepted by GoBGP; no OPEN passes twice.
func FuzzInbound(f *testing.F) {
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
		reader, buffer := bytes.NewReader(stream), make([]byte, longestLength)
		peer := testPeer()
		filter, opens := inbound{peer: &peer, self: nodeIPv4}, 0
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
			if pass == nil {
				continue
			}
			goBGPTakes(t, pass)
			if kindOf(pass) == bgp.BGP_MSG_OPEN {
				if opens++; opens > 1 {
					t.Error("a second OPEN passes")
				}
			}
		}
	})
}

func goBGPTakes(t *testing.T, message []byte) {
	t.Helper()
	const longest = headerLength + 80
	if len(message) > longest || len(message) != int(binary.BigEndian.Uint16(message[markerLength:])) {
		t.Errorf("a message of %d octets passes: %x", len(message), message)
	}
	parsed, err := bgp.ParseBGPMessage(message)
	if err != nil {
		t.Fatalf("passes, and GoBGP cannot read it: %v: %x", err, message)
	}
	switch body := parsed.Body.(type) {
	case *bgp.BGPOpen:
		if asn, err := bgp.ValidateOpenMsg(body, 64500, 64512, nodeIPv4.AsSlice()); err != nil || asn != 64500 {
			t.Errorf("an OPEN of AS%d passes: %v", asn, err)
		}
	case *bgp.BGPUpdate:
		carried := map[bgp.RouteFamily]bgp.BGPAddPathMode{bgp.RF_IPv4_UC: 0, bgp.RF_IPv6_UC: 0}
		if ok, err := bgp.ValidateUpdateMsg(body, carried, true, false, false); !ok {
			t.Errorf("GoBGP refuses the UPDATE that passes: %v: %x", err, message)
		}
		if ends, _ := body.IsEndOfRib(); !ends {
			t.Errorf("an UPDATE passes that is no End-of-RIB: %x", message)
		}
	}
}
