// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// minHoldTime is the minimum hold time (RFC 4271, section 4.2).
const minHoldTime = 3 * time.Second

// add ignores other families.
func (f *families) add(afi uint16, safi byte) {
	f.ipv4 = f.ipv4 || afi == bgp.AFI_IP && safi == bgp.SAFI_UNICAST
	f.ipv6 = f.ipv6 || afi == bgp.AFI_IP6 && safi == bgp.SAFI_UNICAST
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
	// restarting is the Restart State bit (RFC 4724, section 3).
	restarting bool
	// enhanced is true if the router supports enhanced route refresh (RFC 7313).
	enhanced bool
	// role is the router's role plus one (RFC 9234, section 4.1), or zero without one.
	role byte
}

// Codes of used capabilities and of their optional parameter (RFC 5492).
const (
	parameterCapabilities   = 2
	capabilityMultiprotocol = 1
	capabilityRefresh       = 2
	capabilityExtended      = 5
	capabilityRole          = 9
	capabilityRestart       = 64
	capabilityFourOctets    = 65
	capabilityEnhanced      = 70
	familyLength            = 4
)

func badOpen(subcode byte, format string, values ...any) error {
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
		return nil, badOpen(0, "with %d octets of parameters instead of %d", len(parameters), length)
	}
	for len(parameters) > 0 {
		kind := parameters[0]
		value, rest, ok := lengthPrefixed(parameters[1:], octets)
		switch {
		case !ok:
			return nil, badOpen(0, "with a parameter that exceeds the message")
		case kind != parameterCapabilities:
			return nil, badOpen(subcodeParameter, "with unknown parameter type %d", kind)
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

func (o *routerOpen) addCapabilities(capabilities []byte) error {
	for len(capabilities) > 0 {
		value, rest, ok := lengthPrefixed(capabilities[1:], 1)
		if !ok {
			return badOpen(0, "with a capability that exceeds its parameter")
		}
		if err := o.addCapability(capabilities[0], value); err != nil {
			return err
		}
		capabilities = rest
	}
	return nil
}

func (o *routerOpen) addCapability(code byte, value []byte) error {
	badLength := badOpen(0, "with capability %d of invalid length %d", code, len(value))
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
			return badOpen(subcodeBadAS, "with two AS numbers, %d and %d", o.asn, asn)
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
		const restartState = 0x80
		o.restarting = value[0]&restartState != 0
	case capabilityEnhanced:
		o.enhanced = true
	case capabilityRole:
		if len(value) == 1 {
			o.role = 1 + value[0]
		}
	}
	return nil
}

func (o *routerOpen) common(peer *model.Peer) families {
	return o.offered.intersect(families{ipv4: peer.IPv4, ipv6: peer.IPv6})
}

// acceptsASN reports whether a router of the peer may have the AS number.
func acceptsASN(peer *model.Peer, asn uint32) bool {
	return asn == peer.ASN || peer.ASN == 0 && asn != peer.LocalASN
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
		return badOpen(subcodeBadAS, "of AS %d instead of AS %d (peerASN of the LBPeer)", o.asn, peer.ASN)
	case peer.ASN == 0 && o.asn == peer.LocalASN:
		return badOpen(subcodeBadAS, "of AS %d, which is localASN, but dynamicASN of the LBPeer is External", o.asn)
	case o.asn == 0 || o.asn == bgp.AS_TRANS:
		return badOpen(subcodeBadAS, "of AS %d, which is reserved (RFC 7607)", o.asn)
	case o.id.IsUnspecified():
		return badOpen(subcodeBadID, "with identifier 0.0.0.0")
	case o.asn == peer.LocalASN && o.id == self:
		return badOpen(subcodeBadID, "with the node's own identifier %s in an internal session", o.id)
	case o.holdTime == 0:
		// Without a hold timer neither side detects the other's failure.
		return badOpen(subcodeHoldTime, "without a hold time: configure at least %s on the router", minHoldTime)
	case o.holdTime < minHoldTime:
		return badOpen(subcodeHoldTime, "with a hold time of %s", o.holdTime)
	case o.common(peer) == families{}:
		return badOpen(subcodeCapability, "without an address family of the LBPeer: activate IPv4 or IPv6 unicast on the router")
	}
	return nil
}

// carried returns the routes that a session with the router can carry.
func (o *routerOpen) carried(peer *model.Peer) carried {
	return carried{families: o.common(peer), extended: o.extended}
}

// lengthPrefixed returns the content after a length of one or two octets, and the rest.
func lengthPrefixed(octets []byte, lengthOctets int) (content, rest []byte, ok bool) {
	if len(octets) < lengthOctets {
		return nil, nil, false
	}
	length := int(octets[0])
	if lengthOctets == 2 {
		length = int(binary.BigEndian.Uint16(octets))
	}
	end := lengthOctets + length
	if len(octets) < end {
		return nil, nil, false
	}
	return octets[lengthOctets:end], octets[end:], true
}

// ownOpen is the node's OPEN.
type ownOpen struct {
	peer *model.Peer
	id   netip.Addr
	// restarting is the Restart State bit, forwarding the Forwarding State bit of all families (RFC 4724,
	// section 3).
	restarting, forwarding bool
	// role is the node's role plus one (RFC 9234), or zero without the capability.
	role byte
}

func (o ownOpen) encode() ([]byte, error) {
	capabilities := []bgp.ParameterCapabilityInterface{bgp.NewCapRouteRefresh(), bgp.NewCapEnhancedRouteRefresh()}
	var restart []*bgp.CapGracefulRestartTuple
	add := func(family bgp.RouteFamily) {
		capabilities = append(capabilities, bgp.NewCapMultiProtocol(family))
		restart = append(restart, bgp.NewCapGracefulRestartTuple(family, o.forwarding))
	}
	if o.peer.IPv4 {
		add(bgp.RF_IPv4_UC)
		capabilities = append(capabilities, bgp.NewCapExtendedNexthop(
			[]*bgp.CapExtendedNexthopTuple{bgp.NewCapExtendedNexthopTuple(bgp.RF_IPv4_UC, bgp.AFI_IP6)}))
	}
	if o.peer.IPv6 {
		add(bgp.RF_IPv6_UC)
	}
	capabilities = append(capabilities, bgp.NewCapFourOctetASNumber(o.peer.LocalASN))
	if o.role > 0 {
		capabilities = append(capabilities, bgp.NewCapUnknown(capabilityRole, []byte{o.role - 1}))
	}
	if o.peer.RestartTime > 0 {
		// The N bit (RFC 8538) is not set: a router whose hold timer expires would retain the routes of a
		// dead node.
		const notification = false
		seconds := uint16(min(o.peer.RestartTime/time.Second, maxRestartTime))
		capabilities = append(capabilities, bgp.NewCapGracefulRestart(o.restarting, notification, seconds, restart))
	}
	parameters := []bgp.OptionParameterInterface{bgp.NewOptionParameterCapability(capabilities)}
	message := bgp.NewBGPOpenMessage(twoOctets(o.peer.LocalASN), uint16(o.peer.HoldTime/time.Second), o.id.String(), parameters)
	octets, err := message.Serialize()
	if err != nil {
		return nil, fmt.Errorf("encode the OPEN: %w", err)
	}
	return octets, nil
}

// maxRestartTime is the largest Restart Time in seconds, a field of 12 bits (RFC 4724, section 3).
const maxRestartTime = 1<<12 - 1

// complementaryRole returns the node's role for a router's role (RFC 9234, section 4.2), both plus one: Customer
// for a Provider and RS-Client for a route server. It returns zero for other roles, because routes to these
// routers need the OTC attribute.
func complementaryRole(router byte) byte {
	switch router {
	case 1 + 0:
		return 1 + 3
	case 1 + 1:
		return 1 + 2
	}
	return 0
}
