// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
)

// Builder builds Models one after another, each as Build does. What it read for the last one it
// does not read again: a change costs by the VIPs that it touches. Objects are never changed, so
// the same pointer is the same object. The zero value has read nothing. It is not safe for
// concurrent use.
type Builder struct{ previous previous }

// Build returns the Model of a snapshot, and how it differs from the one before.
func (b *Builder) Build(s *Snapshot) (*Model, *Changes) {
	m := build(s, &b.previous)
	changes := b.previous.changes
	b.previous.model, b.previous.changes = m, nil
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
	frontends []*Frontend
	problems  []Problem
	// younger is a younger node or router with the same address, or empty.
	younger string
	// alone is true where all was read from its own object, its Services and their
	// EndpointSlices.
	alone bool
}

// previous is what was read for the last Model.
type previous struct {
	nodes   *readNodes
	pools   *readPools
	hosts   *readHosts
	objects objects
	canaries
	// vips and routes are the objects of the last snapshot.
	vips   []*millracev1beta1.VIP
	routes []*millracev1beta1.VIPRoute
	// read are the VIPs by their objects, claims the objects by the Services that they name.
	read   map[*millracev1beta1.VIP]*readVIP
	claims map[ServiceName][]*millracev1beta1.VIP
	// dependent are the objects of VIPs that are not alone, troubled those with problems.
	dependent, troubled map[*millracev1beta1.VIP]bool
	// sorted are the VIPs with a valid address by it, frontends those of all, before some are spread
	// for aggregates. Models share both, so neither is changed.
	sorted    []*readVIP
	frontends []*Frontend
	spread    map[netip.Addr]bool
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

// moved returns the names of the nodes that differ in two worlds, and whether VIPs differ for no other
// reason than that endpoints are on those, or hinted for those.
func (w *world) moved(to *world) (names map[string]bool, alone bool) {
	if w.nodeName != to.nodeName || w.tooManyZones != to.tooManyZones || !maps.Equal(w.inhabited(), to.inhabited()) {
		return nil, false
	}
	names = map[string]bool{}
	for _, worlds := range [...][2]*world{{w, to}, {to, w}} {
		for name, node := range worlds[0].nodes {
			if other, found := worlds[1].nodes[name]; !found || node != other || worlds[0].zones[name] != worlds[1].zones[name] {
				names[name] = true
			}
		}
	}
	return names, !names[w.nodeName]
}

// inhabited are the zones in which there are nodes: a Service with zones has weights for each.
func (w *world) inhabited() map[string]bool {
	zones := map[string]bool{}
	for name := range w.nodes {
		zones[w.zones[name]] = true
	}
	return zones
}

// forget has every VIP be read again.
func (f *previous) forget() {
	f.vips, f.routes, f.sorted, f.frontends, f.model = nil, nil, nil, nil, nil
	f.read = map[*millracev1beta1.VIP]*readVIP{}
	f.claims = map[ServiceName][]*millracev1beta1.VIP{}
	f.dependent, f.troubled = map[*millracev1beta1.VIP]bool{}, map[*millracev1beta1.VIP]bool{}
}

// drop forgets what was read of a VIP.
func (f *previous) drop(object *millracev1beta1.VIP) *readVIP {
	vip := f.read[object]
	delete(f.read, object)
	delete(f.dependent, object)
	delete(f.troubled, object)
	for _, name := range claimed(object) {
		rest := slices.DeleteFunc(slices.Clone(f.claims[name]), func(other *millracev1beta1.VIP) bool { return other == object })
		if f.claims[name] = rest; len(rest) == 0 {
			delete(f.claims, name)
		}
	}
	return vip
}

// add notes what was read of a VIP.
func (f *previous) add(object *millracev1beta1.VIP, vip *readVIP) {
	f.read[object] = vip
	if !vip.alone {
		f.dependent[object] = true
	}
	if len(vip.problems) > 0 {
		f.troubled[object] = true
	}
	for _, name := range claimed(object) {
		f.claims[name] = append(f.claims[name], object)
	}
}

// claimed are the Services that a VIP's claims name.
func claimed(vip *millracev1beta1.VIP) []ServiceName {
	names := make([]ServiceName, 0, len(vip.Spec.Claims))
	for i := range vip.Spec.Claims {
		name := ServiceName{vip.Spec.Claims[i].Namespace, vip.Spec.Claims[i].Name}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// stale are the VIPs to be read: those that came, those of which a Service, its EndpointSlices or the
// nodes of its endpoints changed, and those that more depends on. Where the hosts or VIPRoutes are
// others, all are looked at.
func (f *previous) stale(came []*millracev1beta1.VIP, others bool, occupants map[netip.Addr]desired.Occupied, endpoints *endpoints) []*millracev1beta1.VIP {
	stale := slices.Clone(came)
	known := make(map[*millracev1beta1.VIP]bool, len(came))
	for _, object := range came {
		known[object] = true
	}
	add := func(object *millracev1beta1.VIP) {
		if !known[object] {
			known[object] = true
			stale = append(stale, object)
		}
	}
	for name := range f.objects.changed {
		for _, object := range f.claims[name] {
			add(object)
		}
	}
	for object := range f.dependent {
		add(object)
	}
	if others {
		for object, vip := range f.read {
			if vip.Occupant+vip.younger != occupants[vip.Address].By || endpoints.leadElsewhere(object) {
				add(object)
			}
		}
	}
	return stale
}

// leadElsewhere reports whether VIPRoutes add other objects to those that a VIP is read from.
func (b *endpoints) leadElsewhere(vip *millracev1beta1.VIP) bool {
	return len(b.routed) > 0 && slices.ContainsFunc(vip.Spec.Claims, func(claim millracev1beta1.VIPClaim) bool {
		return b.routed[ServiceName{claim.Namespace, claim.Name}]
	})
}

// replace takes those VIPs that were read in place of those that are no more, and notes which
// addresses that changes. It fills the Model's VIPs and the frontends of all.
func (f *previous) replace(m *Model, left, fresh []*readVIP) {
	invalid := func(vip *readVIP) bool { return !vip.Address.IsValid() }
	left, fresh = slices.DeleteFunc(left, invalid), slices.DeleteFunc(fresh, invalid)
	slices.SortFunc(left, (*readVIP).compare)
	slices.SortFunc(fresh, (*readVIP).compare)
	changed := make([]netip.Addr, 0, len(left)+len(fresh))
	for _, vip := range slices.Concat(left, fresh) {
		changed = append(changed, vip.Address)
	}
	slices.SortFunc(changed, netip.Addr.Compare)
	if f.model != nil {
		f.changes = &Changes{Since: f.model, VIPs: slices.Compact(changed)}
	}
	if f.model != nil && slices.EqualFunc(left, fresh, (*readVIP).fits) {
		f.replaceInPlace(m, left, fresh)
		return
	}
	if len(left) > 0 {
		gone := make(map[*readVIP]bool, len(left))
		for _, vip := range left {
			gone[vip] = true
		}
		f.sorted = slices.DeleteFunc(f.sorted, func(vip *readVIP) bool { return gone[vip] })
	}
	f.sorted = merge(f.sorted, fresh)
	frontends := 0
	for _, vip := range f.sorted {
		frontends += len(vip.frontends)
	}
	m.VIPs = make([]VIP, 0, len(f.sorted))
	f.frontends = make([]*Frontend, 0, frontends)
	for _, vip := range f.sorted {
		m.VIPs = append(m.VIPs, vip.VIP)
		f.frontends = append(f.frontends, vip.frontends...)
	}
}

// fits reports whether a VIP can take the place of another one in lists of VIPs and of frontends.
func (v *readVIP) fits(other *readVIP) bool {
	return v.Address == other.Address && len(v.frontends) == len(other.frontends)
}

// replaceInPlace is replace where each VIP fits in the place of one: of many VIPs a few change.
func (f *previous) replaceInPlace(m *Model, left, fresh []*readVIP) {
	m.VIPs = f.model.VIPs
	if len(fresh) == 0 {
		return
	}
	f.frontends = slices.Clone(f.frontends)
	for i, vip := range fresh {
		place, _ := slices.BinarySearchFunc(f.sorted, vip, (*readVIP).compare)
		f.sorted[place] = vip
		if !vip.VIP.equals(&left[i].VIP) {
			if delta.IsSame(m.VIPs, f.model.VIPs) {
				m.VIPs = slices.Clone(m.VIPs)
			}
			m.VIPs[place] = vip.VIP
		}
		if len(vip.frontends) > 0 {
			first, _ := slices.BinarySearchFunc(f.frontends, vip.Address, compareVIP)
			copy(f.frontends[first:], vip.frontends)
		}
	}
}

// compareVIP finds the first frontend of a VIP.
func compareVIP(f *Frontend, vip netip.Addr) int {
	if f.Key.VIP.Compare(vip) < 0 {
		return -1
	}
	return 1
}

// equals reports whether two are the same VIP, with all that is said of it.
func (v *VIP) equals(other *VIP) bool {
	return v.Address == other.Address && v.Pool == other.Pool && v.Occupant == other.Occupant &&
		v.Release == other.Release && v.Created.Equal(other.Created) && v.Duplicate == other.Duplicate &&
		slices.EqualFunc(v.Services, other.Services, func(a, b VIPService) bool {
			return a.Name == b.Name && maps.Equal(a.Labels, b.Labels)
		})
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

	// lastServices and lastSlices are those of the snapshot before.
	lastServices []*corev1.Service
	lastSlices   []*discoveryv1.EndpointSlice
}

// advance takes a snapshot.
func (o *objects) advance(s *Snapshot) {
	if o.services == nil {
		o.services = make(map[ServiceName]*corev1.Service, len(s.Services))
		o.slicesOf = make(map[ServiceName][]*discoveryv1.EndpointSlice, len(s.EndpointSlices))
	}
	o.changed = map[ServiceName]bool{}
	came, went := delta.Between(o.lastServices, s.Services)
	o.lastServices = s.Services
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
	came, went := delta.Between(o.lastSlices, all)
	o.lastSlices = all
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

// touch has the Services count as changed that have endpoints on some nodes, or hinted for them.
func (o *objects) touch(nodes map[string]bool) {
	if len(nodes) == 0 {
		return
	}
	on := func(e discoveryv1.Endpoint) bool {
		return e.NodeName != nil && nodes[*e.NodeName] || e.Hints != nil &&
			slices.ContainsFunc(e.Hints.ForNodes, func(hint discoveryv1.ForNode) bool { return nodes[hint.Name] })
	}
	for _, slice := range o.lastSlices {
		if slice != nil && slices.ContainsFunc(slice.Endpoints, on) {
			o.changed[serviceOf(slice)] = true
		}
	}
}

// touchAddresses has the Services count as changed that have endpoints with some addresses; nil for
// none.
func (o *objects) touchAddresses(some func(netip.Addr) bool) {
	if some == nil {
		return
	}
	has := func(e discoveryv1.Endpoint) bool {
		if len(e.Addresses) == 0 {
			return false
		}
		address, err := netip.ParseAddr(e.Addresses[0])
		return err == nil && some(address)
	}
	for _, slice := range o.lastSlices {
		if slice != nil && slices.ContainsFunc(slice.Endpoints, has) {
			o.changed[serviceOf(slice)] = true
		}
	}
}

func serviceOf(slice *discoveryv1.EndpointSlice) ServiceName {
	return ServiceName{slice.Namespace, slice.Labels[discoveryv1.LabelServiceName]}
}
