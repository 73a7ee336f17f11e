// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Advertisement is a parsed and valid VIPAdvertisement.
type Advertisement struct {
	Name string
	// Pools and Peers are sorted names; an empty list selects all.
	Pools, Peers []string
	// Services selects VIPs by the labels of their Services. Nil selects all VIPs, even without a Service.
	Services labels.Selector
	Nodes    labels.Selector
	// Communities (RFC 1997) and LargeCommunities (RFC 8092) are sorted and without duplicates.
	Communities         []uint32
	LargeCommunities    [][3]uint32
	ExtendedCommunities []ExtendedCommunity
	// LocalPreference and MED are nil if not set (RFC 4271, sections 5.1.5 and 5.1.4).
	LocalPreference, MED *uint32
	// Prepend is the number of additional copies of the node's ASN in the AS path.
	Prepend uint8
	// Weighed is true if routes have the link bandwidth community with the number of the node's endpoints.
	Weighed bool
	// Length4 and Length6 are the prefix lengths of aggregates; 0 means one route per VIP.
	Length4, Length6 int
	// L2 is true if nodes answer for the VIPs on their links instead of announcing them to peers. Interfaces
	// names these links; empty selects those whose network contains the VIP.
	L2         bool
	Interfaces []string
}

const (
	shortestAggregate4, longestAggregate4 = 8, 32
	shortestAggregate6, longestAggregate6 = 32, 128
)

// Aggregates reports whether VIPs are announced by aggregates.
func (a Advertisement) Aggregates() bool { return a.Length4 > 0 || a.Length6 > 0 }

// Aggregate returns the prefix that announces a VIP, and whether it is an aggregate.
func (a *Advertisement) Aggregate(vip netip.Addr) (netip.Prefix, bool) {
	length := a.Length6
	if vip.Is4() {
		length = a.Length4
	}
	if length == 0 {
		length = vip.BitLen()
	}
	return netip.PrefixFrom(vip, length).Masked(), length < vip.BitLen()
}

// ExtendedCommunity is an extended community with an ASN (RFC 4360, RFC 5668).
type ExtendedCommunity struct {
	// Subtype is RouteTarget or SiteOfOrigin.
	Subtype byte
	// Value has 32 bits after a 16-bit ASN, and 16 bits after a larger ASN.
	ASN, Value uint32
}

// Subtypes of extended communities (RFC 4360).
const (
	RouteTarget  byte = 2
	SiteOfOrigin byte = 3
)

func (c ExtendedCommunity) compare(other ExtendedCommunity) int {
	return cmp.Or(cmp.Compare(c.Subtype, other.Subtype), cmp.Compare(c.ASN, other.ASN), cmp.Compare(c.Value, other.Value))
}

// wellKnown are the communities of the IANA registry BGP Well-known Communities, by name.
var wellKnown = map[string]uint32{
	"graceful-shutdown":   0xffff0000, // RFC 8326
	"accept-own":          0xffff0001, // RFC 7611
	"blackhole":           0xffff029a, // RFC 7999
	"no-export":           0xffffff01, // RFC 1997
	"no-advertise":        0xffffff02,
	"no-export-subconfed": 0xffffff03,
	"no-peer":             0xffffff04, // RFC 3765
}

// ParseAdvertisement parses a VIPAdvertisement. If it is invalid, only Name, and Nodes unless nil, may be
// used.
func ParseAdvertisement(object *millracev1beta1.VIPAdvertisement) (Advertisement, []Problem) {
	p := problems{object: Object{Kind: "VIPAdvertisement", Name: object.Name}}
	spec := &object.Spec
	advertisement := Advertisement{
		Name:  object.Name,
		Pools: slices.Sorted(slices.Values(spec.Pools)),
		Peers: slices.Sorted(slices.Values(spec.Peers)),
		Nodes: p.selector("spec.nodeSelector", spec.NodeSelector),
	}
	if spec.ServiceSelector != nil {
		advertisement.Services = p.selector("spec.serviceSelector", spec.ServiceSelector)
	}
	for i, text := range spec.Communities {
		if err := advertisement.addCommunity(text); err != nil {
			p.invalid(fmt.Sprintf("spec.communities[%d]", i), "%v", err)
		}
	}
	slices.Sort(advertisement.Communities)
	advertisement.Communities = slices.Compact(advertisement.Communities)
	slices.SortFunc(advertisement.LargeCommunities, func(a, b [3]uint32) int { return slices.Compare(a[:], b[:]) })
	advertisement.LargeCommunities = slices.Compact(advertisement.LargeCommunities)
	slices.SortFunc(advertisement.ExtendedCommunities, ExtendedCommunity.compare)
	advertisement.ExtendedCommunities = slices.Compact(advertisement.ExtendedCommunities)
	if spec.MED != nil {
		med := uint32(p.within("spec.med", *spec.MED, 0, math.MaxUint32))
		advertisement.MED = &med
	}
	advertisement.Prepend = uint8(p.within("spec.asPathPrepend", int64(spec.ASPathPrepend), 0, 16))
	switch spec.LinkBandwidth {
	case "":
	case millracev1beta1.LinkBandwidthEndpoints:
		advertisement.Weighed = true
	default:
		p.invalid("spec.linkBandwidth", "%q is unknown: must be %s", spec.LinkBandwidth, millracev1beta1.LinkBandwidthEndpoints)
	}
	p.aggregation(&advertisement, spec)
	p.l2(&advertisement, spec)
	if spec.LocalPreference != nil {
		preference := uint32(p.within("spec.localPreference", *spec.LocalPreference, 0, math.MaxUint32))
		advertisement.LocalPreference = &preference
	}
	return advertisement, p.found
}

func (p *problems) aggregation(advertisement *Advertisement, spec *millracev1beta1.VIPAdvertisementSpec) {
	read := func(field string, length *int32, shortest, longest int64) int {
		if length == nil || int64(*length) == longest {
			return 0
		}
		return int(p.within(field, int64(*length), shortest, longest))
	}
	advertisement.Length4 = read("spec.aggregationLength", spec.AggregationLength, shortestAggregate4, longestAggregate4)
	advertisement.Length6 = read("spec.aggregationLengthV6", spec.AggregationLengthV6, shortestAggregate6, longestAggregate6)
	if advertisement.Weighed && (advertisement.Length4 > 0 || advertisement.Length6 > 0) {
		p.invalid("spec.linkBandwidth", "is mutually exclusive with aggregation, because it counts the endpoints of one VIP")
	}
}

// l2 parses spec.l2. It rejects fields for peers, which would have no effect.
func (p *problems) l2(advertisement *Advertisement, spec *millracev1beta1.VIPAdvertisementSpec) {
	if spec.L2 == nil {
		return
	}
	advertisement.L2 = true
	advertisement.Interfaces = slices.Sorted(slices.Values(spec.L2.Interfaces))
	if len(spec.Peers) > 0 || len(spec.Communities) > 0 || spec.AggregationLength != nil || spec.AggregationLengthV6 != nil ||
		spec.MED != nil || spec.ASPathPrepend != 0 || spec.LocalPreference != nil || spec.LinkBandwidth != "" {
		p.invalid("spec.l2", "is mutually exclusive with settings for peers: create another VIPAdvertisement for peers, which may select the same VIPs")
	}
}

// addCommunity parses and adds a community: "a:b" (RFC 1997), "a:b:c" (RFC 8092), an extended one, "rt:a:b"
// or "soo:a:b", or a well-known one by name.
func (a *Advertisement) addCommunity(text string) error {
	if value, found := wellKnown[text]; found {
		a.Communities = append(a.Communities, value)
		return nil
	}
	parts := strings.Split(text, ":")
	switch parts[0] {
	case "rt":
		return a.addExtended(RouteTarget, text, parts[1:])
	case "soo":
		return a.addExtended(SiteOfOrigin, text, parts[1:])
	}
	width := 16
	switch len(parts) {
	case 2:
	case 3:
		width = 32
	default:
		return fmt.Errorf("%q is not a community: must be standard (64512:100, or a well-known name), large (64512:1:100) or extended (rt:64512:100)", text)
	}
	var numbers [3]uint32
	for i, part := range parts {
		number, err := strconv.ParseUint(part, 10, width)
		if err != nil {
			return fmt.Errorf("%q: %q must be a number from 0 to %d", text, part, uint64(1)<<width-1)
		}
		numbers[i] = uint32(number)
	}
	if len(parts) == 2 {
		a.Communities = append(a.Communities, numbers[0]<<16|numbers[1])
	} else {
		a.LargeCommunities = append(a.LargeCommunities, numbers)
	}
	return nil
}

// addExtended parses and adds an extended community. Its value has four octets after a two-octet ASN, and two
// octets after a longer one.
func (a *Advertisement) addExtended(subtype byte, text string, parts []string) error {
	if len(parts) != 2 {
		return fmt.Errorf("%q: an extended community has two numbers after its name (rt:64512:100)", text)
	}
	asn, err := strconv.ParseUint(parts[0], 10, 32)
	if err != nil {
		return fmt.Errorf("%q: %q must be a number from 0 to %d", text, parts[0], uint32(math.MaxUint32))
	}
	width := 32
	if asn > math.MaxUint16 {
		width = 16
	}
	value, err := strconv.ParseUint(parts[1], 10, width)
	if err != nil {
		return fmt.Errorf("%q: %q must be a number from 0 to %d", text, parts[1], uint64(1)<<width-1)
	}
	a.ExtendedCommunities = append(a.ExtendedCommunities, ExtendedCommunity{subtype, uint32(asn), uint32(value)})
	return nil
}

// Advertisements returns the problems of VIPAdvertisements, including references to missing pools and peers.
func Advertisements(
	objects []millracev1beta1.VIPAdvertisement,
	pools []millracev1beta1.VIPPool,
	peers []millracev1beta1.LBPeer,
) []Problem {
	poolNames, peerNames := sets.New[string](), sets.New[string]()
	for i := range pools {
		poolNames.Insert(pools[i].Name)
	}
	for i := range peers {
		peerNames.Insert(peers[i].Name)
	}
	var found []Problem
	for i := range objects {
		p := problems{object: Object{Kind: "VIPAdvertisement", Name: objects[i].Name}}
		p.references("spec.pools", "VIPPool", objects[i].Spec.Pools, poolNames)
		p.references("spec.peers", "LBPeer", objects[i].Spec.Peers, peerNames)
		_, invalid := ParseAdvertisement(&objects[i])
		found = append(append(found, p.found...), invalid...)
	}
	return found
}

func (p *problems) references(field, kind string, names []string, existing sets.Set[string]) {
	for i, name := range names {
		if existing.Has(name) {
			continue
		}
		advice := "create it, or correct the name"
		if similar := Nearest(name, sets.List(existing)); similar != "" {
			advice = fmt.Sprintf("did you mean %q?", similar)
		}
		p.invalid(fmt.Sprintf("%s[%d]", field, i), "%s %q does not exist: %s", kind, name, advice)
	}
}

// Selects reports whether the advertisement selects a VIP with this pool and these labels of its Services.
func (a *Advertisement) Selects(pool string, services []labels.Set) bool {
	if len(a.Pools) > 0 && !slices.Contains(a.Pools, pool) {
		return false
	}
	return a.Services == nil || slices.ContainsFunc(services, func(set labels.Set) bool { return a.Services.Matches(set) })
}
