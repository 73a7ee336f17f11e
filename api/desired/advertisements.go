// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// Advertisement is a valid VIPAdvertisement.
type Advertisement struct {
	Name string
	// Pools and Peers are sorted names; empty means all.
	Pools, Peers []string
	// Services selects VIPs by the labels of their Services. It is nil where all
	// VIPs are meant, those without a Service included.
	Services labels.Selector
	// Nodes selects the nodes that announce, by their labels.
	Nodes labels.Selector
	// Communities are values of RFC 1997, LargeCommunities triples of RFC 8092;
	// both are sorted, each once.
	Communities      []uint32
	LargeCommunities [][3]uint32
	// LocalPreference is nil where none is set (RFC 4271, section 5.1.5).
	LocalPreference *uint32
}

// ParseAdvertisement reads a VIPAdvertisement. Of an invalid one only Name and
// Nodes can be used; Nodes is nil where the selector itself is invalid.
func ParseAdvertisement(object *millracev1alpha1.VIPAdvertisement) (Advertisement, []Problem) {
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
	if spec.LocalPreference != nil {
		preference := uint32(p.within("spec.localPreference", *spec.LocalPreference, 0, math.MaxUint32))
		advertisement.LocalPreference = &preference
	}
	return advertisement, p.found
}

// addCommunity adds "a:b", two numbers of 16 bits (RFC 1997), or "a:b:c", three
// of 32 bits (RFC 8092).
func (a *Advertisement) addCommunity(text string) error {
	parts := strings.Split(text, ":")
	width := 16
	switch len(parts) {
	case 2:
	case 3:
		width = 32
	default:
		return fmt.Errorf("%q is neither a community (64512:100) nor a large community (64512:1:100)", text)
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

// Advertisements returns what is wrong with VIPAdvertisements, references to
// pools and peers that do not exist included.
func Advertisements(
	objects []millracev1alpha1.VIPAdvertisement,
	pools []millracev1alpha1.VIPPool,
	peers []millracev1alpha1.LBPeer,
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
		if !existing.Has(name) {
			p.invalid(fmt.Sprintf("%s[%d]", field, i), "%s %q does not exist", kind, name)
		}
	}
}

// Selects reports whether the advertisement is for a VIP of a pool whose Services
// have these labels. It says nothing of nodes and peers.
func (a *Advertisement) Selects(pool string, services []labels.Set) bool {
	if len(a.Pools) > 0 && !slices.Contains(a.Pools, pool) {
		return false
	}
	return a.Services == nil || slices.ContainsFunc(services, func(set labels.Set) bool { return a.Services.Matches(set) })
}
