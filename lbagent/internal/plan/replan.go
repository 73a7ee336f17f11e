// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// few VIPs are planned in part even where they are all.
const few = 16

// outcome is what a plan came to.
type outcome struct {
	model  *model.Model
	want   *forwarding.State
	limits forwarding.Limits
	leftover
	// zonal is true where a frontend asks for zones.
	zonal bool
	// budget is that of its Services. The next plan in part goes on in it.
	budget *budget
	// settled is nil until a plan in part needs it.
	settled *settledIndex
}

// spare is a State that nobody needs any more. The next plan is made in it: a copy of all frontends
// would cost more than all else that a plan in part does.
type spare struct {
	// state is nil where there is none.
	state *forwarding.State
	// differs are the entries in which it is not as the last plan.
	differs *forwarding.Entries
}

// copyOfLast returns a State that is as the last plan. What the maps hold is left alone.
func (p *Planner) copyOfLast(have Held) *forwarding.State {
	s := p.spare
	p.spare = spare{}
	if s.state == nil || s.state == have.State {
		s.state = p.last.want.Clone()
	} else {
		s.state.Take(p.last.want, s.differs)
	}
	// Plans of the same nodes share their map, and those in part the source ranges: nobody changes
	// them.
	s.state.Nodes, s.state.SourceRanges = p.last.want.Nodes, p.last.want.SourceRanges
	return s.state
}

// settledIndex is the index of a plan that the maps hold wholly.
type settledIndex struct {
	*index
	// users count the Service ports that have each endpoint.
	users map[forwarding.EndpointID]int
	// endpoints and frontends are those that plans have removed. They stay in the index as long as
	// the maps hold them.
	endpoints map[forwarding.EndpointID]forwarding.Endpoint
	frontends map[forwarding.FrontendKey]forwarding.FrontendID
}

// Replan returns what Plan does. Where it can, it plans no more than the VIPs that changed since
// the last plan, and returns the entries in which the plan may differ from what the maps hold; nil
// stands for all. It can where the maps hold the last plan, nothing changed but VIPs and other
// nodes, and no list of source ranges did: equal lists share a set. What had no room must have none
// now either. A node that is lost adds the VIPs whose tables name it.
// Beside the last plan the maps may hold what waits to be removed, if have says what that is.
//
// A plan is good until the one after the next, unless the maps hold it: a Planner makes plans in
// States that it has given out before.
func (p *Planner) Replan(
	have Held, m *model.Model, changes *model.Changes, limits forwarding.Limits,
) (want *forwarding.State, differs *forwarding.Entries, problems []Problem) {
	part := p.partOf(have, m, changes, limits)
	if part == nil {
		want, problems = p.Plan(have.State, m, limits)
		return want, nil, problems
	}
	if len(part.vips) == 0 && part.nodes == nil {
		// Such a plan follows each whole one, and has the time that the next change has not.
		p.last.model, p.last.settled = m, p.settle(have)
		return p.last.want, have.waiting(), p.last.problems
	}
	if want, differs, problems := p.planPart(have, part); want != nil {
		return want, differs, problems
	}
	want, problems = p.Plan(have.State, m, limits)
	return want, nil, problems
}

// Held is what the maps hold.
type Held struct {
	*forwarding.State
	// Pending is what of it waits to be removed; nil where that is nothing, or not known.
	Pending *forwarding.Pending
}

// is reports whether the maps hold a plan, but for what waits to be removed.
func (h Held) is(plan *forwarding.State) bool {
	return h.State == plan || h.Pending != nil && h.Pending.Wanted == plan
}

// waiting are the entries that wait.
func (h Held) waiting() *forwarding.Entries {
	if h.Pending == nil {
		return &forwarding.Entries{}
	}
	return h.Pending.Entries
}

// part is what a plan is made of again.
type part struct {
	// model is the whole Model, changed the one with the changed VIPs alone.
	model, changed *model.Model
	vips           []netip.Addr
	// nodes are those that live where nodes are others than in the last plan, else nil. lost finds
	// the tables that name one which does not live any more; nil where there is none.
	nodes *nodeSet
	lost  *search
	// previous are the frontends that the changed VIPs had, services their Services.
	previous []forwarding.FrontendKey
	services map[model.ServiceName]*service
}

// ports are those that the Services had.
func (part *part) ports() []*port {
	var ports []*port
	for _, s := range part.services {
		ports = append(ports, s.ports...)
	}
	return ports
}

// partOf returns the part that is to be planned; nil where that is the whole.
func (p *Planner) partOf(have Held, m *model.Model, changes *model.Changes, limits forwarding.Limits) *part {
	last := &p.last
	if limits != last.limits || !last.goesOn(have, m, changes) || !isFew(changes.VIPs, m) {
		return nil
	}
	part := &part{model: m, services: map[model.ServiceName]*service{}}
	vips := changes.VIPs
	if !delta.IsSame(m.Nodes, last.model.Nodes) && !slices.Equal(m.Nodes, last.model.Nodes) {
		part.nodes = living(m.Nodes)
		if part.lost = p.lostIn(part.nodes); part.lost != nil {
			vips = slices.Concat(vips, p.losing(part.lost))
		}
	}
	if !p.setVIPs(part, vips) || !isFew(part.vips, m) || comesBack(part.vips, have.waiting()) {
		return nil
	}
	part.changed = &model.Model{Self: m.Self, Nodes: m.Nodes, Zones: m.Zones}
	for _, address := range part.vips {
		if vip, found := slices.BinarySearchFunc(m.VIPs, address, compareVIP); found {
			part.changed.VIPs = append(part.changed.VIPs, m.VIPs[vip])
		}
		part.changed.Frontends = append(part.changed.Frontends, m.FrontendsOf(address)...)
		for _, previous := range last.model.FrontendsOf(address) {
			part.previous = append(part.previous, previous.Key)
		}
	}
	if !p.leavesOut(have, part) {
		return nil
	}
	return part
}

// goesOn reports whether nothing has changed but VIPs that depend on no others.
func (o *outcome) goesOn(have Held, m *model.Model, changes *model.Changes) bool {
	return changes != nil && changes.Since == o.model && have.is(o.want) && (o.fits || o.waits(have.State)) && sameBesideVIPs(m, o.model)
}

// isFew reports whether the VIPs are not most of the model's.
func isFew(vips []netip.Addr, m *model.Model) bool { return len(vips) <= max(few, len(m.VIPs)/2) }

// comesBack reports whether a VIP changes of which something waits to be removed: it may be wanted
// again, with the tables that it had.
func comesBack(vips []netip.Addr, waiting *forwarding.Entries) bool {
	changes := func(vip netip.Addr) bool {
		_, found := slices.BinarySearchFunc(vips, vip, netip.Addr.Compare)
		return found
	}
	return slices.ContainsFunc(waiting.VIPs, changes) ||
		slices.ContainsFunc(waiting.Frontends, func(key forwarding.FrontendKey) bool { return changes(key.VIP) })
}

// leavesTables reports whether all others go on to have the node tables that they have: every zonal
// one has a table for each zone, else which of them have depends on all.
func (d *draft) leavesTables() bool {
	zonal := d.planner.last.zonal || d.isZonal()
	return !d.movesOthers && (!zonal || d.budget.spreads <= rowsIn(d.limits))
}

// sameBesideVIPs compares what all VIPs depend on.
func sameBesideVIPs(a, b *model.Model) bool {
	return a.Self == b.Self && slices.Equal(a.Zones, b.Zones) &&
		slices.Equal(a.Pools, b.Pools) && slices.Equal(a.Aggregates, b.Aggregates)
}

func compareVIP(vip model.VIP, address netip.Addr) int { return vip.Address.Compare(address) }

// setVIPs notes the changed VIPs, and others of the same Services, for those share tables. It
// reports whether these can be planned without all others.
func (p *Planner) setVIPs(part *part, changed []netip.Addr) bool {
	known := map[netip.Addr]struct{}{}
	add := func(vip netip.Addr) {
		if _, found := known[vip]; !found {
			known[vip] = struct{}{}
			part.vips = append(part.vips, vip)
		}
	}
	for _, vip := range changed {
		add(vip)
	}
	for i := 0; i < len(part.vips); i++ {
		for _, m := range [...]*model.Model{p.last.model, part.model} {
			for _, frontend := range m.FrontendsOf(part.vips[i]) {
				if frontend.Restricted && !p.keepsSources(part.model, frontend.Key) {
					return false
				}
				p.addService(part, frontend.Service, add)
			}
		}
	}
	slices.SortFunc(part.vips, netip.Addr.Compare)
	return true
}

// keepsSources reports whether a frontend goes on to admit the same clients as in the last plan.
func (p *Planner) keepsSources(m *model.Model, key forwarding.FrontendKey) bool {
	before, after := frontendOf(p.last.model, key), frontendOf(m, key)
	_, planned := p.last.want.Frontends[key]
	return planned && before != nil && after != nil && before.Restricted && after.Restricted &&
		slices.Equal(before.Sources, after.Sources)
}

// frontendOf returns a frontend of a model, nil where it has none of that key.
func frontendOf(m *model.Model, key forwarding.FrontendKey) *model.Frontend {
	frontends := m.FrontendsOf(key.VIP)
	at, found := slices.BinarySearchFunc(frontends, key, func(f *model.Frontend, key forwarding.FrontendKey) int { return f.Key.Compare(key) })
	if !found {
		return nil
	}
	return frontends[at]
}

// addService notes the previous ports of a Service, and their VIPs.
func (p *Planner) addService(part *part, name model.ServiceName, add func(netip.Addr)) {
	if _, known := part.services[name]; known || p.services[name] == nil {
		return
	}
	part.services[name] = p.services[name]
	for _, port := range p.services[name].ports {
		for _, key := range port.keys {
			add(key.VIP)
		}
	}
}

// planPart plans a part beside the rest, which stays. The plan is nil where the rest cannot stay.
func (p *Planner) planPart(have Held, part *part) (*forwarding.State, *forwarding.Entries, []Problem) {
	settled := p.settle(have)
	d := emptyDraft(p, have.State, part.changed, p.last.limits)
	d.index, d.keepsSources = settled.index, true
	previous := map[forwarding.FrontendKey]forwarding.Frontend{}
	// What waits may have a table of a Service port whose VIP now belongs to another Service.
	for _, key := range slices.Concat(part.previous, have.waiting().Frontends) {
		if frontend, found := have.Frontends[key]; found {
			previous[key] = frontend
		}
	}
	d.readModel(previous, part.services)
	if !d.leavesTables() {
		return nil, nil, nil
	}
	d.want = p.copyOfLast(have)
	if part.nodes != nil {
		d.setNodes()
		p.setNodes(part.nodes, part.lost)
	}
	d.drawLines()
	part.leave(d.want, settled)
	d.setVIPs()
	entries := d.byPrecedence()
	for _, entry := range entries {
		d.addFrontend(entry)
	}
	d.addZones(entries)
	d.buildTables()
	differs := part.entries(d)
	p.replace(part, d, differs)
	for _, port := range d.ports {
		settled.count(port, 1)
	}
	changed := *differs
	differs.Add(have.waiting())
	settled.remove(have.State, d.want, differs)
	for _, s := range d.services {
		s.finish()
	}
	p.spare = spare{p.last.want, &changed}
	p.last = outcome{
		model: part.model, want: d.want, limits: d.limits, leftover: d.leftOver(differs, p.last.without(part.objects())),
		zonal: p.last.zonal || d.isZonal(), budget: d.budget, settled: settled,
	}
	return d.want, differs, p.last.problems
}

// objects are the Services of which anything is planned.
func (part *part) objects() map[model.ObjectReference]struct{} {
	objects := map[model.ObjectReference]struct{}{}
	for name := range part.services {
		objects[model.ObjectReference{Kind: "Service", Namespace: name.Namespace, Name: name.Name}] = struct{}{}
	}
	for _, f := range part.changed.Frontends {
		objects[serviceOf(f)] = struct{}{}
	}
	return objects
}

// settle returns the index of the last plan, which the maps hold.
func (p *Planner) settle(have Held) *settledIndex {
	s := p.last.settled
	if s == nil {
		s = &settledIndex{
			index:     newIndex(have.State, p.last.limits, p.constants),
			users:     make(map[forwarding.EndpointID]int, len(have.Endpoints)),
			endpoints: map[forwarding.EndpointID]forwarding.Endpoint{},
			frontends: map[forwarding.FrontendKey]forwarding.FrontendID{},
		}
		for _, port := range p.placed {
			s.count(port, 1)
		}
		s.remove(have.State, p.last.want, have.waiting())
	}
	for id, endpoint := range s.endpoints {
		if have.Endpoints[id] == endpoint {
			continue
		}
		if s.known[endpoint] == id {
			delete(s.known, endpoint)
		}
		delete(s.endpoints, id)
	}
	for key, id := range s.frontends {
		if have.Frontends[key].ID == id {
			continue
		}
		if !key.VIP.Is4() {
			delete(s.hashes, key.Hash(s.constants))
		}
		delete(s.frontendIDs, id)
		delete(s.frontends, key)
	}
	return s
}

// remove notes what of some entries the maps hold and a plan does not.
func (s *settledIndex) remove(have, want *forwarding.State, of *forwarding.Entries) {
	for _, id := range of.Endpoints {
		endpoint, had := have.Endpoints[id]
		if _, stays := want.Endpoints[id]; had && !stays {
			s.endpoints[id] = endpoint
		}
	}
	for _, key := range of.Frontends {
		frontend, had := have.Frontends[key]
		if _, stays := want.Frontends[key]; had && !stays {
			s.frontends[key] = frontend.ID
		}
	}
}

func (s *settledIndex) count(port *port, by int) {
	for _, id := range port.endpoints {
		s.users[id] += by
		if s.users[id] == 0 {
			delete(s.users, id)
		}
	}
}

// leave takes the part out of the last plan.
func (part *part) leave(state *forwarding.State, settled *settledIndex) {
	for _, vip := range part.vips {
		delete(state.VIPs, vip)
	}
	for _, key := range part.previous {
		delete(state.Frontends, key)
	}
	for _, port := range part.ports() {
		for _, slot := range port.place.nodeTables() {
			delete(state.NodeTables, slot)
		}
		delete(state.EndpointTables, port.place.endpoints)
		settled.count(port, -1)
		for _, id := range port.endpoints {
			if settled.users[id] == 0 {
				delete(state.Endpoints, id)
			}
		}
	}
}

// entries are those that the part had or has.
func (part *part) entries(d *draft) *forwarding.Entries {
	entries := &forwarding.Entries{VIPs: part.vips, Frontends: slices.Clone(part.previous)}
	for i := range d.entries {
		entries.Frontends = append(entries.Frontends, d.entries[i].Key)
	}
	for _, port := range slices.AppendSeq(part.ports(), maps.Values(d.ports)) {
		entries.NodeTables = append(entries.NodeTables, port.place.nodeTables()...)
		entries.EndpointTables = append(entries.EndpointTables, port.place.endpoints)
		entries.Endpoints = append(entries.Endpoints, port.endpoints...)
	}
	return entries
}

// replace takes a planned part in place of what it was.
func (p *Planner) replace(part *part, d *draft, differs *forwarding.Entries) {
	for _, port := range part.ports() {
		delete(p.placed, port.name)
	}
	maps.Copy(p.placed, d.ports)
	for name := range part.services {
		delete(p.services, name)
	}
	maps.Copy(p.services, d.services)
	for _, slot := range differs.NodeTables {
		if d.want.NodeTables[slot] == nil {
			delete(p.tables, slot)
			delete(p.branches, slot)
		}
	}
	for _, slot := range differs.EndpointTables {
		if d.want.EndpointTables[slot] == nil {
			delete(p.endpointTables, slot)
		}
	}
}
