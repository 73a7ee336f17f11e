// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"

	api "github.com/osrg/gobgp/v3/api"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
)

// path is GoBGP's form of a route. internal is true for a session within one
// autonomous system, the only one that carries a local preference.
func path(route announce.Route, internal bool) (*api.Path, error) {
	nlri, err := anypb.New(&api.IPAddressPrefix{
		Prefix:    route.Prefix.Addr().String(),
		PrefixLen: uint32(route.Prefix.Bits()),
	})
	if err != nil {
		return nil, fmt.Errorf("encode the prefix: %w", err)
	}
	attributes := &attributeList{}
	attributes.add(&api.OriginAttribute{Origin: 0}) // IGP
	family := ipv4Unicast
	if route.Prefix.Addr().Is4() {
		attributes.add(&api.NextHopAttribute{NextHop: route.NextHop.String()})
	} else {
		family = ipv6Unicast
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
	if route.LocalPreference != nil && internal {
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

// attributeList encodes path attributes and keeps the first error.
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

// RouterID returns the BGP identifier of a node: its IPv4 address or, where it
// has none, a number made from its IPv6 address, in the form of an IPv4
// address. An identifier must differ among the speakers of one autonomous
// system only (RFC 6286). It is invalid where the node has no address.
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
