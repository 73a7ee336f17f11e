// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/api/flowhash"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

type builder struct {
	planner   *Planner
	have      *forwarding.State
	model     *model.Model
	limits    forwarding.Limits
	want      *forwarding.State
	problems  []Problem
	shortages map[shortage]*affected
	// budget covers all Services. changesOthers is true if it grants or revokes room for Services that are
	// not planned.
	budget        *budget
	changesOthers bool
	// waits is true if a node table is delayed until another one is removed: that of a Local frontend, or
	// a table that changes its size.
	waits bool

	*index
	// allocatedIDs are the allocated endpoint ids that the maps do not hold.
	allocatedIDs map[forwarding.EndpointID]struct{}
	retainedIDs  map[forwarding.FrontendID]struct{}
	// frontends is the number of frontends in the map before removals.
	frontends int

	// sources is nil if retainsSources is true: each frontend retains the source set that it has in the maps.
	sources        *sourceSets
	retainsSources bool
	tableSlots     *tableSlots
	endpointSlots  *slots[forwarding.EndpointTableSlot]
	entries        []entry
	ports          map[servicePort]*port
	services       map[model.ServiceName]*service
	// tableOwners and endpointTableOwners map the slots of frontends in the maps to their owners; ambiguous
	// slots have no owner.
	tableOwners         map[forwarding.NodeTableSlot]owner
	endpointTableOwners map[forwarding.EndpointTableSlot]owner
	// joins are tables to be removed whose owners join the slot's chains; held are the slots of node tables
	// without new weights.
	joins   map[forwarding.NodeTableSlot][]*forwarding.NodeTable
	held    []forwarding.NodeTableSlot
	weights map[forwarding.NodeTableSlot]weightInput
	shares  map[forwarding.EndpointTableSlot]map[forwarding.Endpoint]table.Share

	histories map[forwarding.NodeTableSlot]*forwarding.NodeTable
	// histories are the tables that new node tables inherit owners from, merged the tables merged with
	// others, origins the slots that new tables were split off from. borrowed are the shared slots retained
	// because a split found no room.
	merged   map[forwarding.NodeTableSlot]*forwarding.NodeTable
	origins  map[forwarding.NodeTableSlot]forwarding.NodeTableSlot
	borrowed []forwarding.NodeTableSlot
}

// index maps the contents of the maps and new allocations to their ids.
type index struct {
	known       map[forwarding.Endpoint]forwarding.EndpointID
	frontendIDs map[forwarding.FrontendID]struct{}
	// hashes are the data plane's lookup keys of IPv6 frontends.
	hashes    map[uint64]forwarding.FrontendKey
	constants flowhash.Constants
}

// servicePort identifies a Service port in one address family. Its frontends on all VIPs have the same
// endpoints.
type servicePort struct {
	service  model.ServiceName
	portName string
	protocol uint8
	ipv4     bool
}

// service is the planner's state of a Service.
type service struct {
	ports []*port
	// specs are the distinct table specs of the ports. A finished plan retains only their budget: spreads and
	// locals.
	specs    []*tableSpec
	spreads  int
	locals   []local
	lineages []*lineage
}

// port is the planner's state of a Service port.
type port struct {
	name    servicePort
	service *service
	keys    []forwarding.FrontendKey
	first   *model.Frontend
	// spec is nil if the port has no live endpoint, lineage if it has no node table. Both are cleared when
	// the plan is finished.
	spec    *tableSpec
	lineage *lineage
	// spreads is true if the port forwards, or did forward, packets to other nodes; zoned if the budget
	// gives it one node table per zone.
	spreads, zoned bool
	// hasLocalTable is true if a Local port gets a node table to find moved connections, yields if the budget has
	// no room for that table.
	hasLocalTable, yields bool
	// place and endpoints are valid once placed is true.
	place     placement
	placed    bool
	endpoints []forwarding.EndpointID
}

type entry struct {
	*model.Frontend
	port *port
}

// owner identifies the owner of a slot: the Service for the node table of packets from routers, the Service
// port for a zone's node table or for an endpoint table.
type owner struct {
	service *service
	port    *port
	// zone is the name of another zone; empty for nodes without a zone.
	zone string
}

// ofService returns the owner of the table that the port shares with its Service.
func (p *port) ofService() owner {
	if p == nil {
		return noOwner
	}
	return owner{service: p.service}
}

func (p *port) in(name string) owner {
	if p == nil {
		return noOwner
	}
	return owner{port: p, zone: name}
}

func portOf(frontend *model.Frontend) servicePort {
	return servicePort{
		service:  frontend.Service,
		portName: frontend.PortName,
		protocol: frontend.Key.Protocol,
		ipv4:     frontend.Key.VIP.Is4(),
	}
}

type placement struct {
	table     forwarding.NodeTableSlot
	endpoints forwarding.EndpointTableSlot
	zones     map[string]forwarding.NodeTableSlot
}

func (p placement) nodeTables() []forwarding.NodeTableSlot {
	return slices.AppendSeq([]forwarding.NodeTableSlot{p.table}, maps.Values(p.zones))
}

func newBuilder(p *Planner, have *forwarding.State, m *model.Model, limits forwarding.Limits) *builder {
	b := emptyBuilder(p, have, m, limits)
	b.want = &forwarding.State{
		Endpoints:      make(map[forwarding.EndpointID]forwarding.Endpoint, len(have.Endpoints)),
		EndpointTables: make(map[forwarding.EndpointTableSlot]*forwarding.EndpointTable, len(have.EndpointTables)),
		NodeTables:     make(map[forwarding.NodeTableSlot]*forwarding.NodeTable, len(have.NodeTables)),
		Frontends:      make(map[forwarding.FrontendKey]forwarding.Frontend, len(m.Frontends)),
		SourceRanges:   make(map[forwarding.SourceRange]struct{}, len(have.SourceRanges)),
		VIPs:           make(map[netip.Addr]struct{}, len(m.VIPs)),
	}
	b.index = newIndex(have, limits, p.constants)
	b.sources = newSourceSets(have, limits.SourceRanges)
	for _, frontend := range have.Frontends {
		b.tableSlots.use(frontend.Table)
		for _, slot := range frontend.Zones {
			b.tableSlots.use(slot)
		}
		b.endpointSlots.use(frontend.Endpoints)
	}
	b.readModel(have.Frontends, nil)
	return b
}

// emptyBuilder returns a builder for the frontends of a model, without index and want.
func emptyBuilder(p *Planner, have *forwarding.State, m *model.Model, limits forwarding.Limits) *builder {
	count := len(m.Frontends)
	return &builder{
		planner: p, have: have, model: m, limits: limits,
		shortages:    map[shortage]*affected{},
		allocatedIDs: map[forwarding.EndpointID]struct{}{},
		retainedIDs:  make(map[forwarding.FrontendID]struct{}, count),
		frontends:    len(have.Frontends),
		tableSlots:   newTableSlots(limits.NodeTables, have.NodeTables),
		endpointSlots: newSlots(limits.EndpointTables, func(slot forwarding.EndpointTableSlot) bool {
			_, used := have.EndpointTables[slot]
			return used
		}),
		entries:  make([]entry, 0, count),
		ports:    make(map[servicePort]*port, count),
		services: make(map[model.ServiceName]*service, count),
		joins:    map[forwarding.NodeTableSlot][]*forwarding.NodeTable{},

		tableOwners:         make(map[forwarding.NodeTableSlot]owner, count),
		endpointTableOwners: make(map[forwarding.EndpointTableSlot]owner, count),

		weights:   make(map[forwarding.NodeTableSlot]weightInput, count),
		shares:    make(map[forwarding.EndpointTableSlot]map[forwarding.Endpoint]table.Share, count),
		histories: map[forwarding.NodeTableSlot]*forwarding.NodeTable{},
		merged:    map[forwarding.NodeTableSlot]*forwarding.NodeTable{},
		origins:   map[forwarding.NodeTableSlot]forwarding.NodeTableSlot{},
	}
}

func newIndex(have *forwarding.State, limits forwarding.Limits, constants flowhash.Constants) *index {
	x := &index{
		known:       make(map[forwarding.Endpoint]forwarding.EndpointID, len(have.Endpoints)),
		frontendIDs: make(map[forwarding.FrontendID]struct{}, len(have.Frontends)),
		hashes:      map[uint64]forwarding.FrontendKey{},
		constants:   constants,
	}
	for id, endpoint := range have.Endpoints {
		if first, found := x.known[endpoint]; int64(id) <= int64(limits.Endpoints) && (!found || id < first) {
			x.known[endpoint] = id
		}
	}
	for key, frontend := range have.Frontends {
		x.reserveHash(key)
		x.frontendIDs[frontend.ID] = struct{}{}
	}
	return x
}

// noOwner owns the slots of frontends that left the model and ambiguous slots.
var noOwner = owner{}

// readModel groups frontends by Service port and determines the owners of their current slots. A slot
// belongs to its owner in the last plan if that still exists. Otherwise, such as after a restart or a
// port's renaming, it belongs to the owner of its frontends. If these have several owners, or some are
// removed, a VIP may have moved to another Service: the slot then has no owner.
//
// previous are the programmed frontends that may have such slots; services are the Services that the builder
// replaces, nil in a full plan.
func (b *builder) readModel(previous map[forwarding.FrontendKey]forwarding.Frontend, services map[model.ServiceName]*service) {
	b.readPorts()
	placed := make(map[forwarding.NodeTableSlot]owner, len(b.ports))
	placedEndpoints := make(map[forwarding.EndpointTableSlot]owner, len(b.ports))
	for name, port := range b.ports {
		previous := b.planner.placed[name]
		if previous == nil || !previous.placed {
			continue
		}
		placed[previous.place.table] = port.ofService()
		for zone, slot := range previous.place.zones {
			placed[slot] = port.in(zone)
		}
		placedEndpoints[previous.place.endpoints] = owner{port: port}
	}
	setOwners := func(frontend forwarding.Frontend, port *port) {
		setOwner(b.tableOwners, placed, frontend.Table, port.ofService())
		for number, slot := range frontend.Zones {
			if slot != frontend.Table && number < len(b.model.Zones) {
				setOwner(b.tableOwners, placed, slot, port.in(b.model.Zones[number]))
			}
		}
		setOwner(b.endpointTableOwners, placedEndpoints, frontend.Endpoints, owner{port: port})
	}
	stays := make(map[forwarding.FrontendKey]struct{}, len(previous))
	for _, entry := range b.entries {
		if frontend, found := previous[entry.Key]; found {
			stays[entry.Key] = struct{}{}
			setOwners(frontend, entry.port)
		}
	}
	if len(stays) < len(previous) {
		for key, frontend := range previous {
			if _, found := stays[key]; !found {
				setOwners(frontend, nil)
			}
		}
	}
	b.budgetLocal(services)
	b.retainTables()
}

// retainTables retains the table of Service ports that became Local, because connections established under
// policy Cluster follow its rows.
func (b *builder) retainTables() {
	for _, port := range b.ports {
		if own, _ := b.ownTable(port); own != 0 && !port.yields {
			port.spreads = true
		}
	}
}

func (b *builder) readPorts() {
	// One allocation each, because most Service ports have one frontend.
	ports := make([]port, len(b.model.Frontends))
	keys := make([]forwarding.FrontendKey, len(b.model.Frontends))
	for i, frontend := range b.model.Frontends {
		keys[i] = frontend.Key
		name := portOf(frontend)
		p := b.ports[name]
		if p == nil {
			p = &ports[i]
			p.name, p.service, p.first = name, b.service(name.service), frontend
			p.keys = keys[i : i+1 : i+1]
			b.ports[name] = p
			p.service.add(p)
		} else {
			p.keys = append(p.keys, frontend.Key)
		}
		p.spreads = p.spreads || frontend.Spreads()
		b.entries = append(b.entries, entry{frontend, p})
	}
}

func setOwner[S comparable](owners, placed map[S]owner, slot S, of owner) {
	if known, found := placed[slot]; found {
		owners[slot] = known
	} else if have, found := owners[slot]; found && have != of {
		owners[slot] = noOwner
	} else {
		owners[slot] = of
	}
}

// setVIPs plans the programmed VIPs first and then as many others as fit.
func (b *builder) setVIPs() {
	count := len(b.have.VIPs)
	for _, vip := range b.vipsByPrecedence() {
		if vip.Occupant != "" {
			continue
		}
		if _, programmed := b.have.VIPs[vip.Address]; !programmed {
			if count >= b.limits.VIPs {
				b.full(model.ObjectReference{Kind: "VIP", Name: millracev1beta1.VIPName(vip.Address)},
					fmt.Sprintf("VIP %s", vip.Address), forwarding.VIPs)
				continue
			}
			count++
		}
		b.want.VIPs[vip.Address] = struct{}{}
	}
}

func (b *builder) hasVIP(address netip.Addr) bool {
	_, found := b.want.VIPs[address]
	return found
}
