// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"

	api "github.com/osrg/gobgp/v3/api"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// path encodes a route for GoBGP: LOCAL_PREF for internal peers only, prepending for external ones only.
func path(route announce.Route, peer model.Peer) (*api.Path, error) {
	nlri, err := anypb.New(&api.IPAddressPrefix{
		Prefix:    route.Prefix.Addr().String(),
		PrefixLen: uint32(route.Prefix.Bits()),
	})
	if err != nil {
		return nil, fmt.Errorf("encode the prefix: %w", err)
	}
	attributes := &attributeList{}
	attributes.add(&api.OriginAttribute{Origin: 0}) // IGP
	family := ipv6Unicast
	if route.Prefix.Addr().Is4() {
		family = ipv4Unicast
	}
	if route.NextHop.Is4() {
		attributes.add(&api.NextHopAttribute{NextHop: route.NextHop.String()})
	} else {
		// Also for IPv4 prefixes (RFC 8950).
		attributes.add(&api.MpReachNLRIAttribute{
			Family:   family,
			NextHops: []string{route.NextHop.String()},
			Nlris:    []*anypb.Any{nlri},
		})
	}
	if len(route.Communities) > 0 {
		attributes.add(&api.CommunitiesAttribute{Communities: route.Communities})
	}
	if len(route.LargeCommunities) > 0 {
		attributes.add(&api.LargeCommunitiesAttribute{Communities: largeCommunities(route.LargeCommunities)})
	}
	extended, err := extendedCommunities(route, peer.LocalASN)
	if err != nil {
		return nil, err
	}
	if len(extended) > 0 {
		attributes.add(&api.ExtendedCommunitiesAttribute{Communities: extended})
	}
	if route.MED != nil {
		attributes.add(&api.MultiExitDiscAttribute{Med: *route.MED})
	}
	if route.Prepend > 0 && peer.External() {
		// GoBGP prepends the AS number once more.
		attributes.add(&api.AsPathAttribute{Segments: []*api.AsSegment{{
			Type: api.AsSegment_AS_SEQUENCE, Numbers: slices.Repeat([]uint32{peer.LocalASN}, int(route.Prepend)),
		}}})
	}
	if route.LocalPreference != nil && !peer.External() {
		attributes.add(&api.LocalPrefAttribute{LocalPref: *route.LocalPreference})
	}
	if attributes.err != nil {
		return nil, fmt.Errorf("encode the path attributes: %w", attributes.err)
	}
	return &api.Path{Family: family, Nlri: nlri, Pattrs: attributes.encoded}, nil
}

func largeCommunities(triples [][3]uint32) []*api.LargeCommunity {
	communities := make([]*api.LargeCommunity, 0, len(triples))
	for _, triple := range triples {
		communities = append(communities, &api.LargeCommunity{
			GlobalAdmin: triple[0],
			LocalData1:  triple[1],
			LocalData2:  triple[2],
		})
	}
	return communities
}

// perWeight is the link bandwidth in bytes per second of a weight of one: 1 Gbit/s.
const perWeight = 125_000_000

// asTrans replaces a four-octet AS number in a two-octet field (RFC 6793).
const asTrans = 23456

func extendedCommunities(route announce.Route, localASN uint32) ([]*anypb.Any, error) {
	communities := make([]proto.Message, 0, len(route.ExtendedCommunities)+1)
	for _, c := range route.ExtendedCommunities {
		communities = append(communities, ofSystem(c))
	}
	if route.Weight > 0 {
		asn := localASN
		if asn > math.MaxUint16 {
			asn = asTrans
		}
		communities = append(communities, &api.LinkBandwidthExtended{Asn: asn, Bandwidth: float32(route.Weight) * perWeight})
	}
	encoded := make([]*anypb.Any, 0, len(communities))
	for _, community := range communities {
		message, err := anypb.New(community)
		if err != nil {
			return nil, fmt.Errorf("encode an extended community: %w", err)
		}
		encoded = append(encoded, message)
	}
	return encoded, nil
}

func ofSystem(c desired.ExtendedCommunity) proto.Message {
	if c.ASN > math.MaxUint16 {
		return &api.FourOctetAsSpecificExtended{
			IsTransitive: true, SubType: uint32(c.Subtype), Asn: c.ASN, LocalAdmin: c.Value,
		}
	}
	return &api.TwoOctetAsSpecificExtended{
		IsTransitive: true, SubType: uint32(c.Subtype), Asn: c.ASN, LocalAdmin: c.Value,
	}
}

type attributeList struct {
	encoded []*anypb.Any
	err     error
}

func (l *attributeList) add(attribute proto.Message) {
	encoded, err := anypb.New(attribute)
	if err != nil && l.err == nil {
		l.err = err
	}
	l.encoded = append(l.encoded, encoded)
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
