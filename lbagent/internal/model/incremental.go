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

// Builder builds successive Models with the same results as Build. It caches parsed objects by pointer (objects
// are immutable), so that the cost of a change depends on the number of affected VIPs. The zero value is an
// empty cache. It is not safe for concurrent use.
type Builder struct{ previous previous }

// Build returns the Model of a snapshot and the changes since the previous one.
func (b *Builder) Build(s *Snapshot) (*Model, *Changes) {
	m := build(s, &b.previous)
	changes := b.previous.changes
	b.previous.model, b.previous.changes = m, nil
	return m, changes
}

// Changes lists the differences between two Models. Nil means that everything may differ.
type Changes struct {
	// Since is the previous Model.
	Since *Model
	// VIPs are sorted addresses. All other VIPs and their frontends are equal in both Models. Other parts of
	// the Models may differ.
	VIPs []netip.Addr
}

type readVIP struct {
	VIP
	frontends []*Frontend
	problems  []Problem
	// newerOwner is a newer node or router with the same address, or empty.
	newerOwner string
	// independent is true if the result depends only on the VIP, its Services and their EndpointSlices.
	independent bool
}

type previous struct {
	nodes   *readNodes
	pools   *readPools
	hosts   *readHosts
	objects objects
	canaries
	vips   []*millracev1beta1.VIP
	routes []*millracev1beta1.VIPRoute
	// read are the VIPs by object, claims the VIP objects by claimed Service.
	read   map[*millracev1beta1.VIP]*readVIP
	claims map[ServiceName][]*millracev1beta1.VIP
	// dependent are the VIPs that are not independent, withProblems those with problems.
	dependent, withProblems map[*millracev1beta1.VIP]bool
	// sorted are the valid VIPs by address, frontends those of all VIPs before spreadAggregated. Both are
	// shared with Models and immutable.
	sorted    []*readVIP
	frontends []*Frontend
	spread    map[netip.Addr]bool
	// changes are relative to model, the previous Model.
	model   *Model
	changes *Changes
}

// nodeState is the part of the nodes' state that VIPs depend on.
type nodeState struct {
	nodeName     string
	nodes        map[string]Node
	zones        map[string]string
	tooManyZones int
}

// changedNodes returns the names of the nodes that differ between two states, and whether only VIPs with endpoints
// on those nodes, or hinted for them, are affected.
func (w *nodeState) changedNodes(to *nodeState) (names map[string]bool, alone bool) {
	if w.nodeName != to.nodeName || w.tooManyZones != to.tooManyZones || !maps.Equal(w.nodesInUse(), to.nodesInUse()) {
		return nil, false
	}
	names = map[string]bool{}
	for _, states := range [...][2]*nodeState{{w, to}, {to, w}} {
		for name, node := range states[0].nodes {
			if other, found := states[1].nodes[name]; !found || node != other || states[0].zones[name] != states[1].zones[name] {
				names[name] = true
			}
		}
	}
	return names, !names[w.nodeName]
}

func (w *nodeState) nodesInUse() map[string]bool {
	zones := map[string]bool{}
	for name := range w.nodes {
		zones[w.zones[name]] = true
	}
	return zones
}

func (f *previous) reset() {
	f.vips, f.routes, f.sorted, f.frontends, f.model = nil, nil, nil, nil, nil
	f.read = map[*millracev1beta1.VIP]*readVIP{}
	f.claims = map[ServiceName][]*millracev1beta1.VIP{}
	f.dependent, f.withProblems = map[*millracev1beta1.VIP]bool{}, map[*millracev1beta1.VIP]bool{}
}

func (f *previous) drop(object *millracev1beta1.VIP) *readVIP {
	vip := f.read[object]
	delete(f.read, object)
	delete(f.dependent, object)
	delete(f.withProblems, object)
	for _, name := range claimed(object) {
		rest := slices.DeleteFunc(slices.Clone(f.claims[name]), func(other *millracev1beta1.VIP) bool { return other == object })
		if f.claims[name] = rest; len(rest) == 0 {
			delete(f.claims, name)
		}
	}
	return vip
}

func (f *previous) add(object *millracev1beta1.VIP, vip *readVIP) {
	f.read[object] = vip
	if !vip.independent {
		f.dependent[object] = true
	}
	if len(vip.problems) > 0 {
		f.withProblems[object] = true
	}
	for _, name := range claimed(object) {
		f.claims[name] = append(f.claims[name], object)
	}
}

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

// stale returns the VIPs to be parsed: new ones, those with a changed Service, EndpointSlice or endpoint node,
// and dependent ones. If hosts or VIPRoutes changed (others), it checks all VIPs for an effect.
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
			if vip.Occupant+vip.newerOwner != occupants[vip.Address].By || endpoints.hasRoutedBackends(object) {
				add(object)
			}
		}
	}
	return stale
}

// hasRoutedBackends reports whether a VIPRoute adds backends to one of the VIP's Services.
func (b *endpoints) hasRoutedBackends(vip *millracev1beta1.VIP) bool {
	return len(b.routed) > 0 && slices.ContainsFunc(vip.Spec.Claims, func(claim millracev1beta1.VIPClaim) bool {
		return b.routed[ServiceName{claim.Namespace, claim.Name}]
	})
}

// replace replaces removed and outdated VIPs by fresh ones, records the changed addresses and fills the Model's
// VIPs and frontends.
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

func (v *readVIP) fits(other *readVIP) bool {
	return v.Address == other.Address && len(v.frontends) == len(other.frontends)
}

// replaceInPlace is replace for VIPs that all fit, the common case of few changes.
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

// compareVIP is for a binary search for the first frontend of a VIP.
func compareVIP(f *Frontend, vip netip.Addr) int {
	if f.Key.VIP.Compare(vip) < 0 {
		return -1
	}
	return 1
}

func (v *VIP) equals(other *VIP) bool {
	return v.Address == other.Address && v.Pool == other.Pool && v.Occupant == other.Occupant &&
		v.Release == other.Release && v.Created.Equal(other.Created) && v.Duplicate == other.Duplicate &&
		slices.EqualFunc(v.Services, other.Services, func(a, b VIPService) bool {
			return a.Name == b.Name && maps.Equal(a.Labels, b.Labels)
		})
}

func (v *readVIP) compare(other *readVIP) int { return v.Address.Compare(other.Address) }

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

type objects struct {
	services map[ServiceName]*corev1.Service
	slicesOf map[ServiceName][]*discoveryv1.EndpointSlice
	// changed are the Services with changes since the previous snapshot.
	changed map[ServiceName]bool

	lastServices []*corev1.Service
	lastSlices   []*discoveryv1.EndpointSlice
}

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

// touchAddresses marks Services with endpoints that match as changed; nil matches no address.
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
