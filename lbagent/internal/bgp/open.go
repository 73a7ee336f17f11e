// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// shortestHold is the minimum hold time (RFC 4271, section 4.2).
const shortestHold = 3 * time.Second

type families struct{ ipv4, ipv6 bool }

// add ignores other families.
func (f *families) add(afi uint16, safi byte) {
	f.ipv4 = f.ipv4 || afi == bgp.AFI_IP && safi == bgp.SAFI_UNICAST
	f.ipv6 = f.ipv6 || afi == bgp.AFI_IP6 && safi == bgp.SAFI_UNICAST
}

func (f families) has(afi uint16, safi byte) bool {
	return safi == bgp.SAFI_UNICAST && (afi == bgp.AFI_IP && f.ipv4 || afi == bgp.AFI_IP6 && f.ipv6)
}

func (f families) both(other families) families {
	return families{ipv4: f.ipv4 && other.ipv4, ipv6: f.ipv6 && other.ipv6}
}

// routerOpen has the used fields of a router's OPEN (RFC 4271, section 4.2).
type routerOpen struct {
	version byte
	// asn is the four-octet AS number if fourOctets is true (RFC 6793).
	asn        uint32
	fourOctets bool
	holdTime   time.Duration
	id         netip.Addr
	// offered are the families that the router accepts (RFC 4760, section 8).
	offered families
	// multiprotocol is true if the capability is present; otherwise IPv4 is implied.
	multiprotocol bool
	// extended is true if the router accepts IPv6 next hops of IPv4 routes (RFC 8950, section 4).
	extended bool
	// restart is the flags and time of graceful restart (RFC 4724, section 3), or nil.
	restart []byte
	keeps   families
}

// Codes of used capabilities and of their optional parameter (RFC 5492).
const (
	parameterCapabilities   = 2
	capabilityMultiprotocol = 1
	capabilityRefresh       = 2
	capabilityExtended      = 5
	capabilityRestart       = 64
	capabilityFourOctets    = 65
	familyLength            = 4
)

func openError(subcode byte, format string, values ...any) error {
	return &protocolError{code: codeOpen, subcode: subcode, what: "an OPEN " + fmt.Sprintf(format, values...)}
}

// parseOpen supports the extended length of RFC 9072 and ignores unused capabilities. Its errors are
// protocolErrors.
func parseOpen(message []byte) (*routerOpen, error) {
	const (
		fixed    = 10
		extended = 255
	)
	body := message[headerLength:]
	if len(body) < fixed {
		return nil, &protocolError{code: codeHeader, subcode: subcodeLength, what: "an OPEN that is too short"}
	}
	o := &routerOpen{
		version: body[0], asn: uint32(binary.BigEndian.Uint16(body[1:])),
		holdTime: time.Duration(binary.BigEndian.Uint16(body[3:])) * time.Second,
		id:       netip.AddrFrom4([4]byte(body[5:9])),
	}
	length, parameters, octets := int(body[9]), body[fixed:], 1
	if length > 0 && len(parameters) >= 3 && parameters[0] == extended {
		length, parameters, octets = int(binary.BigEndian.Uint16(parameters[1:])), parameters[3:], 2
	}
	if length != len(parameters) {
		return nil, openError(0, "whose parameters have %d octets, and not the %d that it says", len(parameters), length)
	}
	for len(parameters) > 0 {
		kind := parameters[0]
		value, rest, ok := sized(parameters[1:], octets)
		switch {
		case !ok:
			return nil, openError(0, "with a parameter that goes on past its end")
		case kind != parameterCapabilities:
			return nil, openError(subcodeParameter, "with an unknown parameter, of type %d", kind)
		}
		if err := o.addCapabilities(value); err != nil {
			return nil, err
		}
		parameters = rest
	}
	if !o.multiprotocol {
		o.offered.ipv4 = true
	}
	return o, nil
}

// sized returns the content after a length of one or two octets, and the rest.
func sized(octets []byte, lengthOctets int) (content, rest []byte, ok bool) {
	if lengthOctets == 2 {
		return counted(octets)
	}
	if content, ok = prefixed(octets); ok {
		rest = octets[1+len(content):]
	}
	return content, rest, ok
}

func (o *routerOpen) addCapabilities(capabilities []byte) error {
	for len(capabilities) > 0 {
		value, rest, ok := sized(capabilities[1:], 1)
		if !ok {
			return openError(0, "with a capability that goes on past its parameter")
		}
		if err := o.addCapability(capabilities[0], value); err != nil {
			return err
		}
		capabilities = rest
	}
	return nil
}

func (o *routerOpen) addCapability(code byte, value []byte) error {
	badLength := openError(0, "with capability %d of %d octets", code, len(value))
	switch code {
	case capabilityMultiprotocol:
		if len(value) != familyLength {
			return badLength
		}
		o.multiprotocol = true
		o.offered.add(binary.BigEndian.Uint16(value), value[3])
	case capabilityFourOctets:
		if len(value) != 4 {
			return badLength
		}
		asn := binary.BigEndian.Uint32(value)
		if o.fourOctets && asn != o.asn {
			return openError(subcodeBadAS, "with two autonomous systems, AS%d and AS%d", o.asn, asn)
		}
		o.asn, o.fourOctets = asn, true
	case capabilityExtended:
		const tuple = 6
		for ; len(value) >= tuple; value = value[tuple:] {
			o.extended = o.extended || [tuple]byte(value) == [tuple]byte{0, bgp.AFI_IP, 0, bgp.SAFI_UNICAST, 0, bgp.AFI_IP6}
		}
	case capabilityRestart:
		if len(value) < 2 {
			return badLength
		}
		// The last instance applies (RFC 4724, section 3).
		o.restart, o.keeps = slices.Clone(value[:2]), families{}
		for rest := value[2:]; len(rest) >= familyLength; rest = rest[familyLength:] {
			o.keeps.add(binary.BigEndian.Uint16(rest), rest[2])
		}
	}
	return nil
}

func (o *routerOpen) isRestarting() bool { return len(o.restart) > 0 && o.restart[0]&restartState != 0 }

func (o *routerOpen) common(peer *model.Peer) families {
	return o.offered.both(families{ipv4: peer.IPv4, ipv6: peer.IPv6})
}

// check validates an OPEN (RFC 4271, section 6.2, and RFC 6286). An invalid self is not compared.
func (o *routerOpen) check(peer *model.Peer, self netip.Addr) error {
	const version = 4
	switch {
	case o.version != version:
		return &protocolError{
			code: codeOpen, subcode: subcodeVersion, what: fmt.Sprintf("an OPEN of BGP version %d", o.version), data: []byte{0, version},
		}
	case peer.ASN != 0 && o.asn != peer.ASN:
		return openError(subcodeBadAS, "of AS%d, and the LBPeer says AS%d (peerASN)", o.asn, peer.ASN)
	case peer.ASN == 0 && o.asn == peer.LocalASN:
		return openError(subcodeBadAS, "of AS%d, which is ours, and the LBPeer says External (dynamicASN)", o.asn)
	case o.asn == 0 || o.asn == bgp.AS_TRANS:
		return openError(subcodeBadAS, "of AS%d, which is nobody's", o.asn)
	case o.id.IsUnspecified():
		return openError(subcodeBadID, "with identifier 0.0.0.0")
	case o.asn == peer.LocalASN && o.id == self:
		return openError(subcodeBadID, "with this node's identifier, %s, in an internal session", o.id)
	case o.holdTime == 0:
		// Without a hold timer neither side detects the other's failure.
		return openError(subcodeHoldTime, "without a hold time: give the router one of %s at least", shortestHold)
	case o.holdTime < shortestHold:
		return openError(subcodeHoldTime, "with a hold time of %s", o.holdTime)
	case o.common(peer) == families{}:
		return openError(subcodeCapability, "without a family of the LBPeer's: activate IPv4 unicast or IPv6 unicast on the router")
	}
	return nil
}

// forGoBGP returns an equivalent OPEN without any data that GoBGP might interpret differently.
func (o *routerOpen) forGoBGP(common families) []byte {
	as := o.asn
	if as > 1<<16-1 {
		as = bgp.AS_TRANS
	}
	var capabilities []byte
	add := func(code byte, value ...byte) {
		capabilities = append(append(capabilities, code, byte(len(value))), value...)
	}
	// A router may send ROUTE-REFRESH without the capability, because we offer it (RFC 2918, section 3).
	add(capabilityRefresh)
	if common.ipv4 {
		add(capabilityMultiprotocol, 0, bgp.AFI_IP, 0, bgp.SAFI_UNICAST)
	}
	if common.ipv6 {
		add(capabilityMultiprotocol, 0, bgp.AFI_IP6, 0, bgp.SAFI_UNICAST)
	}
	if o.fourOctets {
		add(capabilityFourOctets, binary.BigEndian.AppendUint32(nil, o.asn)...)
	}
	if o.restart != nil {
		value := slices.Clone(o.restart)
		if common.ipv4 && o.keeps.ipv4 {
			value = append(value, 0, bgp.AFI_IP, bgp.SAFI_UNICAST, 0)
		}
		if common.ipv6 && o.keeps.ipv6 {
			value = append(value, 0, bgp.AFI_IP6, bgp.SAFI_UNICAST, 0)
		}
		add(capabilityRestart, value...)
	}
	body := []byte{o.version}
	body = binary.BigEndian.AppendUint16(body, uint16(as))
	body = binary.BigEndian.AppendUint16(body, uint16(o.holdTime/time.Second))
	body = append(body, o.id.AsSlice()...)
	body = append(body, byte(2+len(capabilities)), parameterCapabilities, byte(len(capabilities)))
	return encode(bgp.BGP_MSG_OPEN, append(body, capabilities...)...)
}
