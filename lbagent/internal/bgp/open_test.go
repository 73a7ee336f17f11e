// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bytes"
	"errors"
	"testing"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

// The node's OPEN is valid for GoBGP's parser, and its parameters are those of the LBPeer.
func TestLocalOpen(t *testing.T) {
	peer := testPeer()
	peer.LocalASN = 4200000001
	for name, test := range map[string]struct {
		own  ownOpen
		want []byte
	}{
		"fresh":      {ownOpen{}, capability(64, 0, 60, 0, 1, 1, 0, 0, 2, 1, 0)},
		"restarting": {ownOpen{restarting: true, forwarding: true}, capability(64, 0x80, 60, 0, 1, 1, 0x80, 0, 2, 1, 0x80)},
		"role":       {ownOpen{role: 1 + 3}, capability(9, 3)},
	} {
		test.own.peer, test.own.id = &peer, nodeIPv4
		message, err := test.own.encode()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(message, test.want) {
			t.Errorf("%s: OPEN %x does not contain %x", name, message, test.want)
		}
		parsed, err := bgp.ParseBGPMessage(message)
		if err != nil {
			t.Fatal(err)
		}
		router := testPeer()
		router.ASN, router.LocalASN = peer.LocalASN, router.ASN
		if asn, err := bgp.ValidateOpenMsg(parsed.Body.(*bgp.BGPOpen), peer.LocalASN, router.LocalASN, routerIPv4.AsSlice()); err != nil || asn != peer.LocalASN {
			t.Errorf("%s: AS%d, error %v", name, asn, err)
		}
		open, err := parseOpen(message)
		if err == nil {
			err = open.check(&router, routerIPv4)
		}
		if err != nil || !open.enhanced || !open.extended || !open.fourOctets || open.restarting != test.own.restarting || open.role != test.own.role {
			t.Errorf("%s: %+v, error %v", name, open, err)
		}
	}
}

func TestOpenOfPeer(t *testing.T) {
	for name, test := range map[string]struct {
		says    open
		local   uint32
		asn     uint32
		subcode byte
	}{
		"any external AS":                      {goodOpen(), 64512, 0, 0},
		"our AS, any external AS configured":   {goodOpen(), 64500, 0, subcodeBadAS},
		"AS_TRANS, any external AS configured": {open{4, bgp.AS_TRANS, 90, [4]byte{1, 1, 1, 1}, nil, nil}, 64512, 0, subcodeBadAS},
		"our identifier, external session":     {open{4, 64500, 90, nodeIPv4.As4(), nil, nil}, 64512, 64500, 0},
		"our identifier, internal session":     {open{4, 64512, 90, nodeIPv4.As4(), nil, nil}, 64512, 64512, subcodeBadID},
	} {
		peer := testPeer()
		peer.ASN, peer.LocalASN = test.asn, test.local
		_, err := parseMessage(test.says.encode(), stateOpenSent, &peer, nodeIPv4)
		var refused *protocolError
		is := errors.As(err, &refused)
		if (test.subcode != 0) != is || is && (refused.code != codeOpen || refused.subcode != test.subcode) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
