// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

// The OPEN passed to GoBGP is equivalent for the session's families.
func TestOpenForGoBGP(t *testing.T) {
	refresh := capability(2)
	restart := capability(64, 0x80, 120, 0, 1, 1, 0x80, 0, 2, 1, 0x80)
	four := capability(65, 0xfa, 0x56, 0xea, 1)
	for name, test := range map[string]struct{ says, hears []byte }{
		"no capabilities":         {goodOpen().encode(), withCapabilities(refresh, capIPv4)},
		"both families, restart":  {withCapabilities(restart, capIPv6, capIPv4, capFour), withCapabilities(refresh, capIPv4, capIPv6, capFour, capability(64, 0x80, 120, 0, 1, 1, 0, 0, 2, 1, 0))},
		"restart of another one":  {withCapabilities(restart, capIPv6), withCapabilities(refresh, capIPv6, capability(64, 0x80, 120, 0, 2, 1, 0))},
		"the last restart counts": {withCapabilities(restart, capability(64, 0, 9)), withCapabilities(refresh, capIPv4, capability(64, 0, 9))},
		"others":                  {withCapabilities(capability(5, 0, 1, 0, 1, 0, 2), capability(69, 0, 1, 1, 3), capIPv4), withCapabilities(refresh, capIPv4)},
	} {
		peer := testPeer()
		filter := inbound{peer: &peer}
		if got, err := filter.check(test.says); err != nil || !bytes.Equal(got, test.hears) {
			t.Errorf("%s: %x, want %x; error %v", name, got, test.hears, err)
		}
	}
	peer := testPeer()
	peer.ASN = 4200000001
	filter := inbound{peer: &peer}
	want := opening(func(o *open) {
		o.as, o.parameters = bgp.AS_TRANS, parameter(2, slices.Concat(refresh, capIPv4, four)...)
	})
	if got, err := filter.check(withCapabilities(four)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("of a system of four octets: %x, want %x; error %v", got, want, err)
	}
}

func TestOpenOfPeer(t *testing.T) {
	for name, test := range map[string]struct {
		says    open
		local   uint32
		asn     uint32
		subcode byte
	}{
		"any external system":                 {goodOpen(), 64512, 0, 0},
		"our system, where any is external":   {goodOpen(), 64500, 0, subcodeBadAS},
		"AS_TRANS, where any is external":     {open{4, bgp.AS_TRANS, 90, [4]byte{1, 1, 1, 1}, nil, nil}, 64512, 0, subcodeBadAS},
		"our identifier, of an external one":  {open{4, 64500, 90, nodeIPv4.As4(), nil, nil}, 64512, 64500, 0},
		"our identifier, in internal session": {open{4, 64512, 90, nodeIPv4.As4(), nil, nil}, 64512, 64512, subcodeBadID},
	} {
		peer := testPeer()
		peer.ASN, peer.LocalASN = test.asn, test.local
		filter := inbound{peer: &peer, self: nodeIPv4}
		_, err := filter.check(test.says.encode())
		var refused *protocolError
		is := errors.As(err, &refused)
		if (test.subcode != 0) != is || is && (refused.code != codeOpen || refused.subcode != test.subcode) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
