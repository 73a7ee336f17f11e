// SPDX-License-Identifier: Apache-2.0

package cilium

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/migration"
)

const (
	loadBalancerIP = "LoadBalancerIP"

	// The shortest aggregation lengths of a VIPAdvertisement.
	shortestIPv4, shortestIPv6 = 8, 32
)

// wellKnown maps the names of communities that a VIPAdvertisement does not support to their numbers.
var wellKnown = map[string]string{
	"internet":                   "0:0",
	"planned-shut":               "65535:0",
	"route-filter-translated-v4": "65535:2",
	"route-filter-v4":            "65535:3",
	"route-filter-translated-v6": "65535:4",
	"route-filter-v6":            "65535:5",
	"llgr-stale":                 "65535:6",
	"no-llgr":                    "65535:7",
}

type announced struct {
	peers []string
	// part is true if a session of two families selects it for only one of them.
	part bool
}

func (c *converter) announce(s *session, peers []string) {
	families := map[string]int{}
	count := 0
	for i := range s.settings.Families {
		family := &s.settings.Families[i]
		if _, ok := family.known(); !ok {
			continue
		}
		count++
		for _, name := range c.selected(family.Advertisements, s.noteSettings) {
			families[name]++
		}
	}
	if len(families) == 0 {
		s.noteSettings("its families select no CiliumBGPAdvertisement: its sessions announce nothing")
	}
	for name, selected := range families {
		if c.announced[name] == nil {
			c.announced[name] = &announced{}
		}
		c.announced[name].peers = append(c.announced[name].peers, peers...)
		c.announced[name].part = c.announced[name].part || selected < count
	}
}

// selected returns no advertisements for a nil selector.
func (c *converter) selected(by *metav1.LabelSelector, note noteFunc) (names []string) {
	selector, err := metav1.LabelSelectorAsSelector(by)
	if err != nil {
		note("advertisements: %v", err)
		return nil
	}
	for i := range c.objects.advertisements {
		if metadata := &c.objects.advertisements[i].Metadata; selector.Matches(labels.Set(metadata.Labels)) {
			names = append(names, metadata.Name)
		}
	}
	return names
}

func (c *converter) advertisements(from *advertisement) {
	note := c.noteFunc(kindAdvert, from.Metadata.Name)
	to := c.announced[from.Metadata.Name]
	if to == nil || len(to.peers) == 0 {
		note("no peer has a family that selects it, so it is left out")
		return
	}
	if to.part {
		note("a peer with two families selects it for one of them only: its LBPeer announces VIPs of both")
	}
	peers := slices.Compact(slices.Sorted(slices.Values(to.peers)))
	for i := range from.Spec.Advertisements {
		c.advertised(from, i, peers, note)
	}
}

func (c *converter) advertised(from *advertisement, i int, peers []string, note noteFunc) {
	entry := &from.Spec.Advertisements[i]
	switch {
	case entry.AdvertisementType != "Service":
		note("routes of type %s are not supported", entry.AdvertisementType)
		return
	case entry.Service == nil || !announces(entry.Service.Addresses, note):
		return
	case entry.Selector == nil:
		note("an entry without a selector selects no Service, so it is left out")
		return
	}
	names := []string{from.Metadata.Name}
	if len(from.Spec.Advertisements) > 1 {
		names = append(names, strconv.Itoa(i+1))
	}
	to := migration.NewAdvertisement(c.name("VIPAdvertisement", names...))
	to.Spec.Peers, to.Spec.ServiceSelector = peers, unlessEmpty(entry.Selector)
	labelled(to.Spec.ServiceSelector, note)
	to.Spec.AggregationLength = aggregation(entry.Service.AggregationLengthIPv4, shortestIPv4, note)
	to.Spec.AggregationLengthV6 = aggregation(entry.Service.AggregationLengthIPv6, shortestIPv6, note)
	entry.Attributes.apply(&to.Spec, note)
	c.result.Advertisements = append(c.result.Advertisements, to)
}

func announces(addresses []string, note noteFunc) (loadBalancers bool) {
	for _, kind := range addresses {
		if kind == loadBalancerIP {
			loadBalancers = true
			continue
		}
		note("addresses of Services of type %s are not supported", kind)
	}
	return loadBalancers
}

func aggregation(length *int32, shortest int32, note noteFunc) *int32 {
	if length == nil {
		return nil
	}
	if *length < shortest {
		note("the aggregation length %d is less than %d: each VIP is announced by itself", *length, shortest)
		return nil
	}
	note("Cilium announces Services with externalTrafficPolicy Local by themselves, aggregationLength aggregates them, too")
	return length
}

func (a *attributes) apply(to *millracev1beta1.VIPAdvertisementSpec, note noteFunc) {
	if a == nil {
		return
	}
	to.LocalPreference = a.LocalPreference
	if a.Communities == nil {
		return
	}
	for _, standard := range a.Communities.Standard {
		if number, err := strconv.ParseUint(standard, 10, 32); err == nil {
			standard = fmt.Sprintf("%d:%d", number>>16, number&0xffff)
		}
		to.Communities = append(to.Communities, standard)
	}
	for _, name := range a.Communities.WellKnown {
		if number, ok := wellKnown[name]; ok {
			note("the community %s is %s by number", name, number)
			name = number
		}
		to.Communities = append(to.Communities, name)
	}
	to.Communities = append(to.Communities, a.Communities.Large...)
	slices.Sort(to.Communities)
	to.Communities = slices.Compact(to.Communities)
}

// policy converts a CiliumBGPPeeringPolicy, which combines all settings in Cilium before 1.16.
func (c *converter) policy(from *peeringPolicy) {
	note := c.noteFunc(kindPolicy, from.Metadata.Name)
	for i := range from.Spec.VirtualRouters {
		router := &from.Spec.VirtualRouters[i]
		names := []string{from.Metadata.Name}
		if len(from.Spec.VirtualRouters) > 1 {
			names = append(names, strconv.FormatInt(router.LocalASN, 10))
		}
		announces := router.announces(note)
		var peers []string
		for j := range router.Neighbors {
			of := c.session(router.Neighbors[j].session(names, router.LocalASN, from.Spec.NodeSelector, note))
			if announces {
				c.pathAttributes(router, &router.Neighbors[j], of, names)
			}
			peers = append(peers, of...)
		}
		if router.ExportPodCIDR != nil && *router.ExportPodCIDR {
			note("exportPodCIDR: routes of pods are not supported")
		}
		if router.PodIPPoolSelector != nil {
			note("podIPPoolSelector: routes of pods are not supported")
		}
		if len(peers) == 0 || !announces {
			continue
		}
		// Of conflicting VIPAdvertisements the first by name wins, which must be the one with attributes.
		to := migration.NewAdvertisement(c.name("VIPAdvertisement", append(slices.Clone(names), "services")...))
		to.Spec.Peers, to.Spec.ServiceSelector = peers, unlessEmpty(router.ServiceSelector)
		labelled(to.Spec.ServiceSelector, note)
		c.result.Advertisements = append(c.result.Advertisements, to)
	}
}

func (r *virtualRouter) announces(note noteFunc) bool {
	if r.ServiceSelector == nil {
		note("AS %d has no serviceSelector, so it announces no Service", r.LocalASN)
		return false
	}
	return len(r.ServiceAdvertisements) == 0 || announces(r.ServiceAdvertisements, note)
}

func (n *neighbor) session(names []string, localASN int64, nodes *metav1.LabelSelector, note noteFunc) *session {
	address := n.PeerAddress
	if network, err := netip.ParsePrefix(address); err == nil {
		address = network.Addr().String()
	}
	settings := &peerSettings{
		Transport: &transport{PeerPort: n.PeerPort}, Timers: &n.timers, AuthSecretRef: n.AuthSecretRef, GracefulRestart: n.GracefulRestart,
		EBGPMultihop: n.EBGPMultihopTTL, Families: n.Families,
	}
	if len(settings.Families) == 0 {
		settings.Families = []family{{AFI: "ipv4", SAFI: "unicast"}, {AFI: "ipv6", SAFI: "unicast"}}
	}
	return &session{
		note: note, noteSettings: note, name: append(slices.Clone(names), address), nodes: unlessEmpty(nodes),
		localASN: localASN, settings: settings,
		peer: &peer{Name: address, PeerAddress: address, PeerASN: &n.PeerASN},
	}
}

// pathAttributes adds VIPAdvertisements for attributes of addresses of some pools.
func (c *converter) pathAttributes(router *virtualRouter, neighbor *neighbor, peers, names []string) {
	note := c.noteFunc(kindPolicy, names[0])
	for _, path := range neighbor.AdvertisedPathAttributes {
		if path.SelectorType != kindPool {
			note("attributes of %s routes: routes of pods are not supported", path.SelectorType)
			continue
		}
		to := migration.NewAdvertisement(c.name("VIPAdvertisement", append(slices.Clone(names), "attributes")...))
		to.Spec.Peers, to.Spec.ServiceSelector = peers, unlessEmpty(router.ServiceSelector)
		if path.Selector != nil {
			to.Spec.Pools = c.poolsOf(path.Selector, note)
			if len(to.Spec.Pools) == 0 {
				note("attributes of %s have a selector that matches no pool: they are left out", neighbor.PeerAddress)
				continue
			}
		}
		path.apply(&to.Spec, note)
		c.result.Advertisements = append(c.result.Advertisements, to)
	}
}

func (c *converter) poolsOf(by *metav1.LabelSelector, note noteFunc) (names []string) {
	selector, err := metav1.LabelSelectorAsSelector(by)
	if err != nil {
		note("a selector of pools: %v", err)
		return nil
	}
	for i := range c.objects.pools {
		if metadata := &c.objects.pools[i].Metadata; selector.Matches(labels.Set(metadata.Labels)) {
			names = append(names, metadata.Name)
		}
	}
	note("pools are listed by name instead of a selector: add later pools, too")
	slices.Sort(names)
	return names
}
