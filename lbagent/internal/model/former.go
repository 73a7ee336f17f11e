// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// Builder builds Models one after another, each as Build does. What it read for the last one it
// does not read again: a change costs by the VIPs that it touches. Objects are never changed, so
// the same pointer is the same object. The zero value has read nothing. It is not safe for
// concurrent use.
type Builder struct{ former former }

// Build returns the Model of a snapshot.
func (b *Builder) Build(s *Snapshot) *Model { return build(s, &b.former) }

// readVIP is a VIP with its frontends, sorted, and what is wrong with them.
type readVIP struct {
	VIP
	frontends []Frontend
	problems  []Problem
	// from are the objects that all of it was read from; nil where there may be others.
	from *origin
}

// origin are objects that a VIP was read from, besides its own and the nodes.
type origin struct {
	// services are those of its claims, in their order, nil where there is none.
	services []*corev1.Service
	// slices are those of these Services, in that order.
	slices [][]*discoveryv1.EndpointSlice
}

// former is what was read for the last Model.
type former struct {
	// world is what all VIPs are read by.
	world world
	// last are those of the last Model, next those of the one that is being built.
	last, next map[*millracev1alpha1.VIP]*readVIP
}

// world is this node's place among the nodes.
type world struct {
	nodeName     string
	nodes        map[string]Node
	zones        map[string]string
	tooManyZones int
}

func (w *world) equals(other *world) bool {
	return w.nodeName == other.nodeName && w.tooManyZones == other.tooManyZones &&
		maps.Equal(w.nodes, other.nodes) && maps.Equal(w.zones, other.zones)
}

// enter begins a Model. What was read by other nodes is forgotten.
func (f *former) enter(b *builder) {
	now := world{nodeName: b.snapshot.NodeName, nodes: b.nodes, zones: b.zones, tooManyZones: b.tooManyZones}
	f.last = f.next
	if !f.world.equals(&now) {
		f.last = nil
	}
	f.world = now
	f.next = make(map[*millracev1alpha1.VIP]*readVIP, len(b.snapshot.VIPs))
}

func (f *former) keep(object *millracev1alpha1.VIP, vip *readVIP) {
	if vip.from != nil {
		f.next[object] = vip
	}
}

// find returns what was read of a VIP; nil where something that it was read from is another.
func (f *former) find(
	object *millracev1alpha1.VIP, services map[ServiceName]*corev1.Service, endpoints *endpoints,
) *readVIP {
	vip := f.last[object]
	if vip == nil {
		return nil
	}
	for i, claim := range object.Spec.Claims {
		name := ServiceName{claim.Namespace, claim.Name}
		if vip.from.services[i] != services[name] || endpoints.routed[name] ||
			!slices.Equal(vip.from.slices[i], endpoints.slicesOf[name]) {
			return nil
		}
	}
	return vip
}

// originOf returns the objects that a VIP is read from; nil where a VIPRoute adds others.
func originOf(object *millracev1alpha1.VIP, services map[ServiceName]*corev1.Service, endpoints *endpoints) *origin {
	from := &origin{
		services: make([]*corev1.Service, 0, len(object.Spec.Claims)),
		slices:   make([][]*discoveryv1.EndpointSlice, 0, len(object.Spec.Claims)),
	}
	for _, claim := range object.Spec.Claims {
		name := ServiceName{claim.Namespace, claim.Name}
		if endpoints.routed[name] {
			return nil
		}
		from.services = append(from.services, services[name])
		from.slices = append(from.slices, endpoints.slicesOf[name])
	}
	return from
}
