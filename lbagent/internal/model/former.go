// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"net/netip"
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

// Build returns the Model of a snapshot, and how it differs from the one before.
func (b *Builder) Build(s *Snapshot) (*Model, *Changes) {
	m := build(s, &b.former)
	changes := b.former.changes
	b.former.model, b.former.changes = m, nil
	return m, changes
}

// Changes are where a Model may differ from the one before. Nil means anywhere.
type Changes struct {
	// Since is the one before.
	Since *Model
	// VIPs are sorted addresses. Every other VIP is in both Models or in neither, and is the same
	// in both, with its frontends. Nothing is said of what else a Model has.
	VIPs []netip.Addr
}

// readVIP is a VIP with its frontends, sorted, and what is wrong with them.
type readVIP struct {
	VIP
	frontends []Frontend
	problems  []Problem
	// alone is true where all was read from its own object, its Services and their
	// EndpointSlices.
	alone bool
	// round is that of the last Model that it is in.
	round uint64
}

// former is what was read for the last Model.
type former struct {
	// world is what all VIPs are read by.
	world   world
	objects objects
	// round counts the Models.
	round uint64
	// read are the VIPs by their objects, sorted those with a valid address by it.
	read   map[*millracev1alpha1.VIP]*readVIP
	sorted []*readVIP
	// model is the last one, changes those since of the one that is being built.
	model   *Model
	changes *Changes
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
	if f.read == nil || !f.world.equals(&now) {
		f.read = make(map[*millracev1alpha1.VIP]*readVIP, len(b.snapshot.VIPs))
		f.sorted, f.model = nil, nil
	}
	f.world = now
	f.round++
}

// keeps reports whether what was read of a VIP still holds.
func (f *former) keeps(object *millracev1alpha1.VIP, vip *readVIP, endpoints *endpoints) bool {
	return vip.alone && !endpoints.leadElsewhere(object) &&
		!slices.ContainsFunc(object.Spec.Claims, func(claim millracev1alpha1.VIPClaim) bool {
			return f.objects.changed[ServiceName{claim.Namespace, claim.Name}]
		})
}

// leadElsewhere reports whether VIPRoutes add other objects to those that a VIP is read from.
func (b *endpoints) leadElsewhere(vip *millracev1alpha1.VIP) bool {
	return len(b.routed) > 0 && slices.ContainsFunc(vip.Spec.Claims, func(claim millracev1alpha1.VIPClaim) bool {
		return b.routed[ServiceName{claim.Namespace, claim.Name}]
	})
}

// leave ends a Model, given what was read for it.
func (f *former) leave(fresh []*readVIP, count int) {
	if count < len(f.read) {
		maps.DeleteFunc(f.read, func(_ *millracev1alpha1.VIP, vip *readVIP) bool { return vip.round != f.round })
	}
	fresh = slices.DeleteFunc(fresh, func(vip *readVIP) bool { return !vip.Address.IsValid() })
	slices.SortFunc(fresh, (*readVIP).compare)
	changed := make([]netip.Addr, 0, len(fresh))
	for _, vip := range fresh {
		changed = append(changed, vip.Address)
	}
	kept := make([]*readVIP, 0, len(f.sorted))
	for _, vip := range f.sorted {
		if vip.round == f.round {
			kept = append(kept, vip)
		} else {
			changed = append(changed, vip.Address)
		}
	}
	f.sorted = merge(kept, fresh)
	if f.model != nil {
		slices.SortFunc(changed, netip.Addr.Compare)
		f.changes = &Changes{Since: f.model, VIPs: slices.Compact(changed)}
	}
}

func (v *readVIP) compare(other *readVIP) int { return v.Address.Compare(other.Address) }

// merge returns the elements of two sorted lists, sorted.
func merge(a, b []*readVIP) []*readVIP {
	if len(b) == 0 {
		return a
	}
	merged := make([]*readVIP, 0, len(a)+len(b))
	for _, vip := range b {
		before, _ := slices.BinarySearchFunc(a, vip, (*readVIP).compare)
		merged = append(append(merged, a[:before]...), vip)
		a = a[before:]
	}
	return append(merged, a...)
}

// objects are the Services and EndpointSlices of a snapshot, by the name of the Service.
type objects struct {
	services map[ServiceName]*corev1.Service
	// slicesOf are the EndpointSlices of each Service, oldest first.
	slicesOf map[ServiceName][]*discoveryv1.EndpointSlice
	// changed are the Services of which something is another object than in the snapshot before.
	changed map[ServiceName]bool

	knownServices seen[*corev1.Service]
	knownSlices   seen[*discoveryv1.EndpointSlice]
}

// advance takes a snapshot.
func (o *objects) advance(s *Snapshot) {
	if o.services == nil {
		o.services = make(map[ServiceName]*corev1.Service, len(s.Services))
		o.slicesOf = make(map[ServiceName][]*discoveryv1.EndpointSlice, len(s.EndpointSlices))
	}
	o.changed = map[ServiceName]bool{}
	came, went := o.knownServices.advance(s.Services)
	for _, service := range went {
		name := ServiceName{service.Namespace, service.Name}
		delete(o.services, name)
		o.changed[name] = true
	}
	for _, service := range came {
		name := ServiceName{service.Namespace, service.Name}
		o.services[name] = service
		o.changed[name] = true
	}
	o.advanceSlices(s.EndpointSlices)
}

func (o *objects) advanceSlices(all []*discoveryv1.EndpointSlice) {
	came, went := o.knownSlices.advance(all)
	for _, slice := range went {
		name := serviceOf(slice)
		o.slicesOf[name] = slices.DeleteFunc(slices.Clone(o.slicesOf[name]), func(other *discoveryv1.EndpointSlice) bool {
			return other == slice
		})
		if len(o.slicesOf[name]) == 0 {
			delete(o.slicesOf, name)
		}
		o.changed[name] = true
	}
	several := map[ServiceName]bool{}
	for _, slice := range came {
		name := serviceOf(slice)
		if name.Name == "" {
			continue
		}
		o.slicesOf[name] = append(o.slicesOf[name], slice)
		o.changed[name] = true
		if len(o.slicesOf[name]) > 1 {
			several[name] = true
		}
	}
	for name := range several {
		o.slicesOf[name] = oldestFirst(o.slicesOf[name])
	}
}

func serviceOf(slice *discoveryv1.EndpointSlice) ServiceName {
	return ServiceName{slice.Namespace, slice.Labels[discoveryv1.LabelServiceName]}
}

// seen are the objects of the last list, by their pointers.
type seen[T comparable] struct {
	round  uint64
	rounds map[T]uint64
}

// advance takes a list, in which nil is no object, and returns which objects came and went.
func (s *seen[T]) advance(list []T) (came, went []T) {
	if s.rounds == nil {
		s.rounds = make(map[T]uint64, len(list))
	}
	s.round++
	var none T
	for _, object := range list {
		if object == none {
			continue
		}
		if _, known := s.rounds[object]; !known {
			came = append(came, object)
		}
		s.rounds[object] = s.round
	}
	for object, round := range s.rounds {
		if round != s.round {
			went = append(went, object)
			delete(s.rounds, object)
		}
	}
	return came, went
}
