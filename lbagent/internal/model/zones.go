// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// numberZones gives the zones of the usable nodes their numbers, in the order of
// their names, which all nodes agree on. A node without a zone has the number 0.
func (b *builder) numberZones() {
	names := []string{""}
	for name := range b.nodes {
		names = append(names, b.zones[name])
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > program.Zones {
		b.tooManyZones = len(names) - 1
		return
	}
	b.model.Zones = names
	for name, node := range b.nodes {
		number, _ := slices.BinarySearch(names, b.zones[name])
		node.Zone = program.Zone(number)
		b.nodes[name] = node
	}
}

// readDistribution notes whether a Service wants its clients' packets to stay in
// the zone. It does so as long as it asks for it or anything is hinted, not only
// while the hints hold: so the tables of the zones, and what they know of former
// owners, outlast that an endpoint is without a hint for a moment.
func (b *backends) readDistribution(service *corev1.Service) {
	name := ServiceName{service.Namespace, service.Name}
	if service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		return
	}
	mode := service.Annotations[corev1.AnnotationTopologyMode]
	asks := deref(service.Spec.TrafficDistribution, "") != "" || mode == "Auto" || mode == "auto"
	if !asks && !slices.ContainsFunc(b.slicesOf[name], hasHints) {
		return
	}
	if b.tooManyZones > 0 {
		b.problem(name.reference(), ReasonIgnored,
			"spec.trafficDistribution, hints of EndpointSlices: the nodes are in %d zones, at most %d are supported; clients of the VIP get all endpoints in equal shares",
			b.tooManyZones, program.Zones-1)
		return
	}
	b.zonal[name] = true
}

func hasHints(slice *discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool {
		return e.Hints != nil && len(e.Hints.ForZones)+len(e.Hints.ForNodes) > 0
	})
}

// hintedZones returns the zones that an endpoint is hinted for, sorted. A hint for
// nodes is one for their zones: a table for each node would have connections
// choose anew whenever the router picks another one.
func (b *backends) hintedZones(hints *discoveryv1.EndpointHints) []string {
	if hints == nil {
		return nil
	}
	var zones []string
	for _, zone := range hints.ForZones {
		zones = append(zones, zone.Name)
	}
	if len(zones) == 0 {
		for _, node := range hints.ForNodes {
			zones = append(zones, b.zones[node.Name])
		}
	}
	zones = slices.DeleteFunc(zones, func(zone string) bool { return zone == "" })
	slices.Sort(zones)
	return slices.Compact(zones)
}

// fillZones gives a frontend the weights of each zone in which there are nodes, if
// its Service wants that and there are several. As for kube-proxy (topology.go of
// k8s.io/kubernetes/pkg/proxy), hints count where every ready endpoint has one;
// a zone that none is hinted for has all endpoints.
func (b *backends) fillZones(frontend *Frontend, found []backend) {
	if frontend.Local || !b.zonal[frontend.Service] {
		return
	}
	inForce := !slices.ContainsFunc(found, func(e backend) bool { return e.ready && len(e.zones) == 0 })
	zones := 0
	for _, node := range b.nodes {
		if frontend.Zones[node.Zone] == nil {
			frontend.Zones[node.Zone] = b.weightsFor(b.model.Zones[node.Zone], frontend, found, inForce)
			zones++
		}
	}
	if zones < 2 {
		frontend.Zones = [program.Zones]map[program.NodeID]uint32{}
	}
}

func (b *backends) weightsFor(
	zone string, frontend *Frontend, found []backend, inForce bool,
) map[program.NodeID]uint32 {
	weights := map[program.NodeID]uint32{}
	for _, e := range found {
		if node, known := b.nodes[e.node]; known && inForce && e.ready && slices.Contains(e.zones, zone) {
			weights[node.ID]++
		}
	}
	if len(weights) == 0 {
		return frontend.Weights
	}
	return weights
}
