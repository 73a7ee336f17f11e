// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// numberZones numbers the zones of usable nodes by name, so that all nodes agree; 0 means no zone.
func (b *builder) numberZones() {
	names := []string{""}
	for name := range b.nodes {
		names = append(names, b.zones[name])
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > forwarding.Zones {
		b.tooManyZones = len(names) - 1
		return
	}
	b.model.Zones = names
	for name, node := range b.nodes {
		number, _ := slices.BinarySearch(names, b.zones[name])
		node.Zone = forwarding.Zone(number)
		b.nodes[name] = node
	}
}

// readDistribution records whether a Service prefers endpoints in the client's zone. This requires only the
// request or any hint, not complete hints, so that the zones' tables and their former owners survive a
// momentarily missing hint.
func (b *endpoints) readDistribution(service *corev1.Service) {
	name := ServiceName{service.Namespace, service.Name}
	if service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		return
	}
	mode := service.Annotations[corev1.AnnotationTopologyMode]
	asks := deref(service.Spec.TrafficDistribution, "") != "" || mode == "Auto" || mode == "auto"
	if !asks && !b.hasHints(service) {
		return
	}
	if b.tooManyZones > 0 {
		b.problem(name.reference(), ReasonIgnored,
			"spec.trafficDistribution, hints of EndpointSlices: the nodes are in %d zones, at most %d are supported; clients of the VIP get all endpoints in equal shares",
			b.tooManyZones, forwarding.Zones-1)
		return
	}
	b.zonal[name] = true
}

func (b *endpoints) hasHints(service *corev1.Service) bool {
	name := ServiceName{service.Namespace, service.Name}
	if slices.ContainsFunc(b.slicesOf[name], hasHints) {
		return true
	}
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		protocol, _ := protocolNumber(port.Protocol)
		for _, backend := range b.routes[routeKey{name, uint16(port.Port), protocol}] {
			if slices.ContainsFunc(b.slicesOf[backend.service], hasHints) {
				return true
			}
		}
	}
	return false
}

func hasHints(slice *discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool {
		return e.Hints != nil && len(e.Hints.ForZones)+len(e.Hints.ForNodes) > 0
	})
}

// hintedZones returns the hinted zones of an endpoint, sorted. Node hints are mapped to zones: with a table per
// node, connections would move whenever the router selects another node.
func (b *endpoints) hintedZones(hints *discoveryv1.EndpointHints) []string {
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

// fillZones sets a zonal frontend's weights of each zone with nodes if there are several. As in kube-proxy
// (topology.go of k8s.io/kubernetes/pkg/proxy), hints apply only if all ready endpoints of a Service have one,
// and a zone without hints uses all endpoints.
func (b *endpoints) fillZones(frontend *Frontend, pools []pool, routed bool) {
	if frontend.Local || !b.zonal[frontend.Service] {
		return
	}
	zones := 0
	for _, node := range b.nodes {
		if frontend.Zones[node.Zone] == nil {
			frontend.Zones[node.Zone] = weightsFor(b.model.Zones[node.Zone], pools, routed)
			zones++
		}
	}
	if zones < 2 {
		frontend.Zones = [forwarding.Zones]map[forwarding.NodeID]uint32{}
	}
}

// weightsFor returns the weights of a zone. The share of each backend is divided over its endpoints hinted for
// the zone, or over all endpoints if no endpoint has a hint.
func weightsFor(zone string, pools []pool, routed bool) map[forwarding.NodeID]uint32 {
	hinted := make([]pool, len(pools))
	for i, p := range pools {
		p.usable = hintedFor(zone, &p)
		hinted[i] = p
	}
	weights, _, _ := weigh(hinted, routed)
	return weights
}

func hintedFor(zone string, p *pool) []bool {
	if slices.ContainsFunc(p.found, func(e endpoint) bool { return e.ready && len(e.zones) == 0 }) {
		return p.usable
	}
	hinted, some := make([]bool, len(p.found)), false
	for i, e := range p.found {
		hinted[i] = p.usable[i] && e.id != 0 && e.ready && slices.Contains(e.zones, zone)
		some = some || hinted[i]
	}
	if !some {
		return p.usable
	}
	return hinted
}
