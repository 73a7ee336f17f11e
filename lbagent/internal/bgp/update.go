// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Flags and types of the multiprotocol attributes (RFC 4760, section 3).
const (
	optionalExtended = 0x90
	optional         = 0x80
	mpReach          = 14
	mpUnreach        = 15
)

// defaultPreference is the LOCAL_PREF of routes without one.
const defaultPreference = 100

// encoder encodes the UPDATEs of a session.
type encoder struct {
	localASN uint32
	external bool
	// fourOctets is true if the router supports four-octet AS numbers (RFC 6793).
	fourOctets bool
}

func newEncoder(peer *model.Peer, router *routerOpen) encoder {
	return encoder{localASN: peer.LocalASN, external: peer.External(), fourOctets: router.fourOctets}
}

// withdrawals returns UPDATEs that withdraw prefixes.
func withdrawals(prefixes []netip.Prefix) (updates [][]byte) {
	const lengths, family = 4, 3
	at := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() })
	if at < 0 {
		at = len(prefixes)
	}
	for _, nlri := range packed(prefixes[:at], maxMessageLength-headerLength-lengths) {
		body := binary.BigEndian.AppendUint16(nil, uint16(len(nlri)))
		updates = append(updates, encode(bgp.BGP_MSG_UPDATE, append(append(body, nlri...), 0, 0)...))
	}
	for _, nlri := range packed(prefixes[at:], maxMessageLength-headerLength-lengths-attributeHead-family) {
		value := append([]byte{0, bgp.AFI_IP6, bgp.SAFI_UNICAST}, nlri...)
		updates = append(updates, updateOf(multiprotocol(mpUnreach, value), nil))
	}
	return updates
}

// announcements returns UPDATEs that announce routes, each with the prefixes of one set of attributes. Routes
// whose attributes cannot be encoded are omitted, and the first is the error.
func (e encoder) announcements(routes []*announce.Route) (updates [][]byte, err error) {
	groups, err := e.grouped(routes)
	for _, group := range groups {
		updates = append(updates, group.updates()...)
	}
	return updates, err
}

// group is a set of prefixes with equal attributes.
type group struct {
	attributes []byte
	// reachHead has the fields of MP_REACH_NLRI before the prefixes; nil if attributes has a NEXT_HOP.
	reachHead []byte
	prefixes  []netip.Prefix
}

func (g *group) updates() (updates [][]byte) {
	room := maxMessageLength - headerLength - 4 - len(g.attributes)
	if g.reachHead == nil {
		for _, nlri := range packed(g.prefixes, room) {
			updates = append(updates, updateOf(g.attributes, nlri))
		}
		return updates
	}
	for _, nlri := range packed(g.prefixes, room-attributeHead-len(g.reachHead)) {
		// MP_REACH_NLRI is the first attribute (RFC 7606, section 5.1).
		reach := multiprotocol(mpReach, slices.Concat(g.reachHead, nlri))
		updates = append(updates, updateOf(append(reach, g.attributes...), nil))
	}
	return updates
}

// grouped returns the routes by their encoded attributes, in the order of the first routes.
func (e encoder) grouped(routes []*announce.Route) (groups []*group, err error) {
	type key struct{ attributes, reachHead string }
	byKey := map[key]*group{}
	var current *group
	for i, route := range routes {
		if i == 0 || !hasSameAttributes(routes[i-1], route) {
			attributes, failure := e.attributes(route)
			if failure != nil {
				err = cmp.Or(err, fmt.Errorf("route %s: %w", route.Prefix, failure))
				current = nil
				continue
			}
			head := reachHead(route)
			at := key{string(attributes), string(head)}
			if current = byKey[at]; current == nil {
				current = &group{attributes: attributes, reachHead: head}
				byKey[at], groups = current, append(groups, current)
			}
		}
		if current != nil {
			current.prefixes = append(current.prefixes, route.Prefix)
		}
	}
	return groups, err
}

// hasSameAttributes reports whether routes are of the same family and differ only in the prefix.
func hasSameAttributes(a, b *announce.Route) bool {
	same := *b
	same.Prefix = a.Prefix
	return a.Prefix.Addr().Is4() == b.Prefix.Addr().Is4() && a.Equal(&same)
}

// attributeHead is the length of an attribute's flags, type and extended length.
const attributeHead = 4

func multiprotocol(kind byte, value []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{optionalExtended, kind}, uint16(len(value))), value...)
}

func updateOf(attributes, nlri []byte) []byte {
	body := make([]byte, 0, 4+len(attributes)+len(nlri))
	body = binary.BigEndian.AppendUint16(append(body, 0, 0), uint16(len(attributes)))
	return encode(bgp.BGP_MSG_UPDATE, append(append(body, attributes...), nlri...)...)
}

// reachHead returns the fields of MP_REACH_NLRI before its prefixes, or nil for a route with NEXT_HOP.
func reachHead(route *announce.Route) []byte {
	if route.Prefix.Addr().Is4() && route.NextHop.Is4() {
		return nil
	}
	afi := byte(bgp.AFI_IP6)
	if route.Prefix.Addr().Is4() {
		afi = bgp.AFI_IP
	}
	nextHop := route.NextHop.As16()
	head := append([]byte{0, afi, bgp.SAFI_UNICAST, byte(len(nextHop))}, nextHop[:]...)
	return append(head, 0)
}

// packed returns the encoded prefixes (RFC 4271, section 4.3) in parts of at most room octets.
func packed(prefixes []netip.Prefix, room int) (parts [][]byte) {
	var nlri []byte
	for _, prefix := range prefixes {
		octets := prefix.Addr().AsSlice()[:(prefix.Bits()+7)/8]
		if nlri != nil && len(nlri)+1+len(octets) > room {
			parts, nlri = append(parts, nlri), nil
		}
		nlri = append(append(nlri, byte(prefix.Bits())), octets...)
	}
	if len(nlri) > 0 {
		parts = append(parts, nlri)
	}
	return parts
}

// attributes encodes a route's path attributes except MP_REACH_NLRI: LOCAL_PREF for internal peers only,
// prepending for external ones only.
func (e encoder) attributes(route *announce.Route) ([]byte, error) {
	list := append([]bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP)}, e.path(route)...)
	if reachHead(route) == nil {
		list = append(list, bgp.NewPathAttributeNextHop(route.NextHop.String()))
	}
	if route.MED != nil {
		list = append(list, bgp.NewPathAttributeMultiExitDisc(*route.MED))
	}
	if !e.external {
		preference := uint32(defaultPreference)
		if route.LocalPreference != nil {
			preference = *route.LocalPreference
		}
		list = append(list, bgp.NewPathAttributeLocalPref(preference))
	}
	if len(route.Communities) > 0 {
		list = append(list, bgp.NewPathAttributeCommunities(route.Communities))
	}
	if extended := e.extendedCommunities(route); len(extended) > 0 {
		list = append(list, bgp.NewPathAttributeExtendedCommunities(extended))
	}
	if len(route.LargeCommunities) > 0 {
		large := make([]*bgp.LargeCommunity, 0, len(route.LargeCommunities))
		for _, part := range route.LargeCommunities {
			large = append(large, bgp.NewLargeCommunity(part[0], part[1], part[2]))
		}
		list = append(list, bgp.NewPathAttributeLargeCommunities(large))
	}
	var all []byte
	for _, attribute := range list {
		encoded, err := attribute.Serialize()
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", attribute.GetType(), err)
		}
		all = append(all, encoded...)
	}
	if len(all) > maxAttributesLength {
		return nil, fmt.Errorf("the attributes have %d octets, more than the maximum of %d", len(all), maxAttributesLength)
	}
	return all, nil
}

// maxAttributesLength leaves space for the largest MP_REACH_NLRI with one prefix.
const maxAttributesLength = maxMessageLength - headerLength - 4 - attributeHead - 5 - 16 - 17

// path returns AS_PATH, and AS4_PATH for a router without four-octet AS numbers if the node's AS number needs
// it (RFC 6793, section 4.2.2).
func (e encoder) path(route *announce.Route) []bgp.PathAttributeInterface {
	if !e.external {
		return []bgp.PathAttributeInterface{bgp.NewPathAttributeAsPath(nil)}
	}
	numbers := slices.Repeat([]uint32{e.localASN}, 1+int(route.Prepend))
	long := bgp.NewAs4PathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, numbers)
	if e.fourOctets {
		return []bgp.PathAttributeInterface{bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{long})}
	}
	short := bgp.NewAsPathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, slices.Repeat([]uint16{twoOctets(e.localASN)}, len(numbers)))
	attributes := []bgp.PathAttributeInterface{bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{short})}
	if e.localASN > math.MaxUint16 {
		attributes = append(attributes, bgp.NewPathAttributeAs4Path([]*bgp.As4PathParam{long}))
	}
	return attributes
}

// twoOctets returns AS_TRANS for a four-octet AS number (RFC 6793).
func twoOctets(asn uint32) uint16 {
	if asn > math.MaxUint16 {
		return bgp.AS_TRANS
	}
	return uint16(asn)
}

// bytesPerWeight is the link bandwidth in bytes per second of a weight of one: 1 Gbit/s.
const bytesPerWeight = 125_000_000

func (e encoder) extendedCommunities(route *announce.Route) []bgp.ExtendedCommunityInterface {
	communities := make([]bgp.ExtendedCommunityInterface, 0, len(route.ExtendedCommunities)+1)
	for _, c := range route.ExtendedCommunities {
		communities = append(communities, asSpecific(c))
	}
	if route.Weight > 0 {
		communities = append(communities, bgp.NewLinkBandwidthExtended(twoOctets(e.localASN), float32(route.Weight)*bytesPerWeight))
	}
	return communities
}

func asSpecific(c desired.ExtendedCommunity) bgp.ExtendedCommunityInterface {
	subtype := bgp.ExtendedCommunityAttrSubType(c.Subtype)
	if c.ASN > math.MaxUint16 {
		return bgp.NewFourOctetAsSpecificExtended(subtype, c.ASN, uint16(c.Value), true)
	}
	return bgp.NewTwoOctetAsSpecificExtended(subtype, uint16(c.ASN), c.Value, true)
}

// endOfRIBMessage returns the End-of-RIB of a family (RFC 4724, section 2).
func endOfRIBMessage(afi byte) []byte {
	if afi == bgp.AFI_IP {
		return encode(bgp.BGP_MSG_UPDATE, 0, 0, 0, 0)
	}
	return encode(bgp.BGP_MSG_UPDATE, 0, 0, 0, 6, optional, mpUnreach, 3, 0, afi, bgp.SAFI_UNICAST)
}

// RouterID returns the BGP identifier of a node: its IPv4 address, or else a hash of its IPv6 address.
// Identifiers must be unique within an AS only (RFC 6286). It is invalid if the node has no address.
func RouterID(ipv4, ipv6 netip.Addr) netip.Addr {
	if ipv4.Is4() && !ipv4.IsUnspecified() {
		return ipv4
	}
	if !ipv6.Is6() {
		return netip.Addr{}
	}
	hash := fnv.New32a()
	address := ipv6.As16()
	_, _ = hash.Write(address[:])
	var id [4]byte
	binary.BigEndian.PutUint32(id[:], max(hash.Sum32(), 1))
	return netip.AddrFrom4(id)
}
