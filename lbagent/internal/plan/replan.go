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

// maxPartial is the largest number of VIPs that always allows a partial plan.
const maxPartial = 16

type result struct {
	model  *model.Model
	want   *forwarding.State
	limits forwarding.Limits
	unplaced
	zonal bool
	// budget is updated in place by the next partial plan.
	budget    *budget
	committed *committedIndex
}

// scratch is a discarded State, reused by the next plan: cloning all frontends would dominate the cost of a
// partial plan.
type scratch struct {
	state *forwarding.State
	// differs are the entries of state that differ from the last plan.
	differs *forwarding.Entries
}

// copyLast returns a mutable copy of the last plan. It never reuses the State that the maps hold.
func (p *Planner) copyLast(have MapContent) *forwarding.State {
	s := p.scratch
	p.scratch = scratch{}
	if s.state == nil || s.state == have.State {
		s.state = p.last.want.Clone()
	} else {
		s.state.CopyFrom(p.last.want, s.differs)
	}
	// Nodes and source ranges are shared between plans and immutable.
	s.state.Nodes, s.state.SourceRanges = p.last.want.Nodes, p.last.want.SourceRanges
	return s.state
}

// committedIndex is the index of a plan that the maps hold completely.
type committedIndex struct {
	*index
	users map[forwarding.EndpointID]int
	// endpoints and frontends were removed by plans. They stay in the index while the maps hold them.
	endpoints map[forwarding.EndpointID]forwarding.Endpoint
	frontends map[forwarding.FrontendKey]forwarding.FrontendID
}

// Replan returns the same plan as Plan, but recomputes only the VIPs changed since the last plan if possible.
// It returns the entries in which the plan may differ from the maps; nil stands for all entries.
//
// A partial plan requires that the maps hold the last plan apart from have.Pending, that only VIPs and other
// nodes changed, that no list of source ranges changed (equal lists share a set), and that entries left out
// before still have no room. A lost node adds the VIPs whose tables contain it.
//
// A plan is valid until the second next one, unless the maps hold it: a Planner reuses the States it returned.
func (p *Planner) Replan(
	have MapContent, m *model.Model, changes *model.Changes, limits forwarding.Limits,
) (want *forwarding.State, differs *forwarding.Entries, problems []Problem) {
	part := p.partOf(have, m, changes, limits)
	if part == nil {
		want, problems = p.Plan(have.State, m, limits)
		return want, nil, problems
	}
	if len(part.vips) == 0 && part.nodes == nil {
		// An unchanged plan follows each full plan. It builds the index early, so that the next change is
		// planned faster.
		p.last.model, p.last.committed = m, p.commit(have)
		return p.last.want, have.waiting(), p.last.problems
	}
	if want, differs, problems := p.planPart(have, part); want != nil {
		return want, differs, problems
	}
	want, problems = p.Plan(have.State, m, limits)
	return want, nil, problems
}

// MapContent is the content of the maps.
type MapContent struct {
	*forwarding.State
	// Pending are the entries that wait for removal; nil if unknown or empty.
	Pending *forwarding.Pending
}

// equals reports whether the maps hold a plan, apart from pending removals.
func (h MapContent) equals(plan *forwarding.State) bool {
	return h.State == plan || h.Pending != nil && h.Pending.Wanted == plan
}

func (h MapContent) waiting() *forwarding.Entries {
	if h.Pending == nil {
		return &forwarding.Entries{}
	}
	return h.Pending.Entries
}

type part struct {
	// model is the complete Model, changed the Model of the replanned VIPs only.
	model, changed *model.Model
	vips           []netip.Addr
	// nodes are the live nodes if nodes changed, else nil. lost finds the tables that contain a lost node;
	// nil if none was lost.
	nodes *nodeSet
	lost  *search
	// previous are the former frontends of the replanned VIPs, services their Services.
	previous []forwarding.FrontendKey
	services map[model.ServiceName]*service
}

func (part *part) ports() []*port {
	var ports []*port
	for _, s := range part.services {
		ports = append(ports, s.ports...)
	}
	return ports
}

func (p *Planner) partOf(have MapContent, m *model.Model, changes *model.Changes, limits forwarding.Limits) *part {
	last := &p.last
	if limits != last.limits || !last.canReuse(have, m, changes) || !isFew(changes.VIPs, m) {
		return nil
	}
	part := &part{model: m, services: map[model.ServiceName]*service{}}
	vips := changes.VIPs
	if !delta.IsSame(m.Nodes, last.model.Nodes) && !slices.Equal(m.Nodes, last.model.Nodes) {
		part.nodes = liveNodes(m.Nodes)
		if part.lost = p.lostIn(part.nodes); part.lost != nil {
			vips = slices.Concat(vips, p.losing(part.lost))
		}
	}
	if !p.setVIPs(part, vips) || !isFew(part.vips, m) || isRetained(part.vips, have.waiting()) {
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
	if !p.isUnplacedEqual(have, part) {
		return nil
	}
	return part
}

func (o *result) canReuse(have MapContent, m *model.Model, changes *model.Changes) bool {
	return changes != nil && changes.Since == o.model && have.equals(o.want) && (o.fits || o.waits(have.State)) && sameBesideVIPs(m, o.model)
}

func isFew(vips []netip.Addr, m *model.Model) bool {
	return len(vips) <= max(maxPartial, len(m.VIPs)/2)
}

// isRetained reports whether entries of one of the VIPs wait for removal: the VIP may be wanted again with
// its previous tables.
func isRetained(vips []netip.Addr, waiting *forwarding.Entries) bool {
	changes := func(vip netip.Addr) bool {
		_, found := slices.BinarySearchFunc(vips, vip, netip.Addr.Compare)
		return found
	}
	return slices.ContainsFunc(waiting.VIPs, changes) ||
		slices.ContainsFunc(waiting.Frontends, func(key forwarding.FrontendKey) bool { return changes(key.VIP) })
}

// retainsTables reports whether all other Service ports retain their node tables. For zonal ports this
// requires room for the tables of all zones, since otherwise the budget couples them.
func (b *builder) retainsTables() bool {
	zonal := b.planner.last.zonal || b.isZonal()
	return !b.changesOthers && (!zonal || b.budget.spreads <= rowsIn(b.limits))
}

func sameBesideVIPs(a, b *model.Model) bool {
	return a.Self == b.Self && slices.Equal(a.Zones, b.Zones) &&
		slices.Equal(a.Pools, b.Pools) && slices.Equal(a.Aggregates, b.Aggregates)
}

func compareVIP(vip model.VIP, address netip.Addr) int { return vip.Address.Compare(address) }

// setVIPs adds the changed VIPs and, because Services share tables, all other VIPs of their Services. It
// reports whether they can be planned independently.
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
				if frontend.Restricted && !p.retainsSources(part.model, frontend.Key) {
					return false
				}
				p.addService(part, frontend.Service, add)
			}
		}
	}
	slices.SortFunc(part.vips, netip.Addr.Compare)
	return true
}

func (p *Planner) retainsSources(m *model.Model, key forwarding.FrontendKey) bool {
	before, after := frontendOf(p.last.model, key), frontendOf(m, key)
	_, planned := p.last.want.Frontends[key]
	return planned && before != nil && after != nil && before.Restricted && after.Restricted &&
		slices.Equal(before.Sources, after.Sources)
}

func frontendOf(m *model.Model, key forwarding.FrontendKey) *model.Frontend {
	frontends := m.FrontendsOf(key.VIP)
	at, found := slices.BinarySearchFunc(frontends, key, func(f *model.Frontend, key forwarding.FrontendKey) int { return f.Key.Compare(key) })
	if !found {
		return nil
	}
	return frontends[at]
}

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

// planPart plans a part and retains the rest. The plan is nil if the rest is affected.
func (p *Planner) planPart(have MapContent, part *part) (*forwarding.State, *forwarding.Entries, []Problem) {
	settled := p.commit(have)
	b := emptyBuilder(p, have.State, part.changed, p.last.limits)
	b.index, b.retainsSources = settled.index, true
	previous := map[forwarding.FrontendKey]forwarding.Frontend{}
	// Pending removals may hold a table of a port whose VIP now belongs to another Service.
	for _, key := range slices.Concat(part.previous, have.waiting().Frontends) {
		if frontend, found := have.Frontends[key]; found {
			previous[key] = frontend
		}
	}
	b.readModel(previous, part.services)
	if !b.retainsTables() {
		return nil, nil, nil
	}
	b.want = p.copyLast(have)
	if part.nodes != nil {
		b.setNodes()
		p.setNodes(part.nodes, part.lost)
	}
	b.assignLineages()
	part.removeFrom(b.want, settled)
	b.setVIPs()
	entries := b.byPrecedence()
	for _, entry := range entries {
		b.addFrontend(entry)
	}
	b.addZones(entries)
	b.buildTables()
	differs := part.entries(b)
	p.replace(part, b, differs)
	for _, port := range b.ports {
		settled.count(port, 1)
	}
	changed := *differs
	differs.Add(have.waiting())
	settled.remove(have.State, b.want, differs)
	for _, s := range b.services {
		s.finish()
	}
	p.scratch = scratch{p.last.want, &changed}
	p.last = result{
		model: part.model, want: b.want, limits: b.limits, unplaced: b.unplaced(differs, p.last.without(part.objects())),
		zonal: p.last.zonal || b.isZonal(), budget: b.budget, committed: settled,
	}
	return b.want, differs, p.last.problems
}

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

// commit returns the index of the last plan, which the maps hold.
func (p *Planner) commit(have MapContent) *committedIndex {
	s := p.last.committed
	if s == nil {
		s = &committedIndex{
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

func (s *committedIndex) remove(have, want *forwarding.State, of *forwarding.Entries) {
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

func (s *committedIndex) count(port *port, by int) {
	for _, id := range port.endpoints {
		s.users[id] += by
		if s.users[id] == 0 {
			delete(s.users, id)
		}
	}
}

func (part *part) removeFrom(state *forwarding.State, settled *committedIndex) {
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

func (part *part) entries(b *builder) *forwarding.Entries {
	entries := &forwarding.Entries{VIPs: part.vips, Frontends: slices.Clone(part.previous)}
	for i := range b.entries {
		entries.Frontends = append(entries.Frontends, b.entries[i].Key)
	}
	for _, port := range slices.AppendSeq(part.ports(), maps.Values(b.ports)) {
		entries.NodeTables = append(entries.NodeTables, port.place.nodeTables()...)
		entries.EndpointTables = append(entries.EndpointTables, port.place.endpoints)
		entries.Endpoints = append(entries.Endpoints, port.endpoints...)
	}
	return entries
}

func (p *Planner) replace(part *part, b *builder, differs *forwarding.Entries) {
	for _, port := range part.ports() {
		delete(p.placed, port.name)
	}
	maps.Copy(p.placed, b.ports)
	for name := range part.services {
		delete(p.services, name)
	}
	maps.Copy(p.services, b.services)
	for _, slot := range differs.NodeTables {
		if b.want.NodeTables[slot] == nil {
			delete(p.tables, slot)
			delete(p.forks, slot)
		}
	}
	for _, slot := range differs.EndpointTables {
		if b.want.EndpointTables[slot] == nil {
			delete(p.endpointTables, slot)
		}
	}
}
