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

// draft is a plan in the making.
type draft struct {
	planner  *Planner
	have     *forwarding.State
	model    *model.Model
	limits   forwarding.Limits
	want     *forwarding.State
	problems []Problem
	// shortages are problems that many frontends may have.
	shortages map[shortage]*short
	// budget is that of all Services. movesOthers is true where others than those of the draft
	// come to have room by it, or none.
	budget      *budget
	movesOthers bool
	// waits is true where a Local frontend gets its node table once another one is removed, or a
	// table its size.
	waits bool

	*index
	// given are the ids of endpoints that the maps do not hold.
	given map[forwarding.EndpointID]struct{}
	// keptIDs are the ids of frontends that are planned already.
	keptIDs map[forwarding.FrontendID]struct{}
	// frontends is how many the map will hold before removals.
	frontends int

	// sources are nil where keepsSources is true: each frontend has the set that it has in the
	// maps.
	sources       *sourceSets
	keepsSources  bool
	tableSlots    *tableSlots
	endpointSlots *slots[forwarding.EndpointTableSlot]
	// entries are the model's frontends in their order, ports their Service ports, services their
	// Services.
	entries  []entry
	ports    map[servicePort]*port
	services map[model.ServiceName]*service
	// tableOwners and endpointTableOwners say whose the slots are that
	// frontends have in the maps; nobody's where that is not clear.
	tableOwners         map[forwarding.NodeTableSlot]owner
	endpointTableOwners map[forwarding.EndpointTableSlot]owner
	// joins are tables that are to go, whose owners join a table's chains; held are the node
	// tables that stay as they are.
	joins map[forwarding.NodeTableSlot][]*forwarding.NodeTable
	held  []forwarding.NodeTableSlot
	// weights and shares are what the tables are computed from, histories what
	// new node tables go on from.
	weights map[forwarding.NodeTableSlot]weighed
	shares  map[forwarding.EndpointTableSlot]map[forwarding.Endpoint]table.Share

	histories map[forwarding.NodeTableSlot]*forwarding.NodeTable
	// united are tables that took in the former owners of others, origins the slots that new ones
	// split off from, borrowed the tables of others that there was no room to split off from.
	united   map[forwarding.NodeTableSlot]*forwarding.NodeTable
	origins  map[forwarding.NodeTableSlot]forwarding.NodeTableSlot
	borrowed []forwarding.NodeTableSlot
}

// index finds what the maps hold or what was given out.
type index struct {
	// known are the ids of endpoints.
	known map[forwarding.Endpoint]forwarding.EndpointID
	// frontendIDs are those that are not free.
	frontendIDs map[forwarding.FrontendID]struct{}
	// hashes are by what the data plane finds the IPv6 frontends.
	hashes    map[uint64]forwarding.FrontendKey
	constants flowhash.Constants
}

// servicePort is what frontends on several VIPs have in common: the endpoints of a
// port of a Service in one address family.
type servicePort struct {
	service  model.ServiceName
	portName string
	protocol uint8
	ipv4     bool
}

// service is what a draft knows of a Service.
type service struct {
	// ports are in the order of their first frontends.
	ports []*port
	// recipes are the different ones of its ports. A plan that is over has their part of the budget
	// alone.
	recipes []*recipe
	spreads int
	locals  []local
	lines   []*line
}

// port is what a draft knows of a Service port.
type port struct {
	name    servicePort
	service *service
	// keys are all its frontends, first is the first of them.
	keys  []forwarding.FrontendKey
	first *model.Frontend
	// recipe is nil where no endpoint lives, line where the port has no node table. Both are of
	// a plan in the making.
	recipe *recipe
	line   *line
	// spreads is true where it sends, or sent, packets to other nodes, zoned where it has a node
	// table for each zone, by the budget of all nodes.
	spreads, zoned bool
	// finds is true where a Local one has a node table to find connections by, if there is room,
	// yields where the budget of all nodes has none for it.
	finds, yields bool
	// place holds once placed is true, and so do the ids of its endpoints.
	place     placement
	placed    bool
	endpoints []forwarding.EndpointID
}

// entry is a frontend of the model with its Service port.
type entry struct {
	*model.Frontend
	port *port
}

// owner is whose a slot is: a Service's node table for packets that this node gets from a router,
// or a Service port's for those that nodes of a zone get, or a Service port's endpoint table.
type owner struct {
	service *service
	port    *port
	// zone is the name of another zone, empty for nodes without one.
	zone string
}

// ofService is the owner of the table of the Service port and others of its Service.
func (p *port) ofService() owner {
	if p == nil {
		return nobody
	}
	return owner{service: p.service}
}

// in is the owner of the Service port's table for packets of another zone.
func (p *port) in(name string) owner {
	if p == nil {
		return nobody
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

// placement is where the tables of a Service port are; zero where it needs none.
type placement struct {
	table     forwarding.NodeTableSlot
	endpoints forwarding.EndpointTableSlot
	// zones are the node tables of other zones, by the zone's name.
	zones map[string]forwarding.NodeTableSlot
}

// nodeTables are the slots of all its node tables.
func (p placement) nodeTables() []forwarding.NodeTableSlot {
	return slices.AppendSeq([]forwarding.NodeTableSlot{p.table}, maps.Values(p.zones))
}

// newDraft returns the draft of a whole plan.
func newDraft(p *Planner, have *forwarding.State, m *model.Model, limits forwarding.Limits) *draft {
	d := emptyDraft(p, have, m, limits)
	d.want = &forwarding.State{
		Endpoints:      make(map[forwarding.EndpointID]forwarding.Endpoint, len(have.Endpoints)),
		EndpointTables: make(map[forwarding.EndpointTableSlot]*forwarding.EndpointTable, len(have.EndpointTables)),
		NodeTables:     make(map[forwarding.NodeTableSlot]*forwarding.NodeTable, len(have.NodeTables)),
		Frontends:      make(map[forwarding.FrontendKey]forwarding.Frontend, len(m.Frontends)),
		SourceRanges:   make(map[forwarding.SourceRange]struct{}, len(have.SourceRanges)),
		VIPs:           make(map[netip.Addr]struct{}, len(m.VIPs)),
	}
	d.index = newIndex(have, limits, p.constants)
	d.sources = newSourceSets(have, limits.SourceRanges)
	for _, frontend := range have.Frontends {
		d.tableSlots.use(frontend.Table)
		for _, slot := range frontend.Zones {
			d.tableSlots.use(slot)
		}
		d.endpointSlots.use(frontend.Endpoints)
	}
	d.readModel(have.Frontends, nil)
	return d
}

// emptyDraft returns a draft of those frontends that a model has.
func emptyDraft(p *Planner, have *forwarding.State, m *model.Model, limits forwarding.Limits) *draft {
	count := len(m.Frontends)
	return &draft{
		planner: p, have: have, model: m, limits: limits,
		shortages:  map[shortage]*short{},
		given:      map[forwarding.EndpointID]struct{}{},
		keptIDs:    make(map[forwarding.FrontendID]struct{}, count),
		frontends:  len(have.Frontends),
		tableSlots: newTableSlots(limits.NodeTables, have.NodeTables),
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

		weights:   make(map[forwarding.NodeTableSlot]weighed, count),
		shares:    make(map[forwarding.EndpointTableSlot]map[forwarding.Endpoint]table.Share, count),
		histories: map[forwarding.NodeTableSlot]*forwarding.NodeTable{},
		united:    map[forwarding.NodeTableSlot]*forwarding.NodeTable{},
		origins:   map[forwarding.NodeTableSlot]forwarding.NodeTableSlot{},
	}
}

// newIndex returns the index of what the maps hold.
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
		x.takeHash(key)
		x.frontendIDs[frontend.ID] = struct{}{}
	}
	return x
}

// nobody is the owner of slots of frontends that are not in the model, and of those that cannot be
// told whose they are.
var nobody = owner{}

// readModel notes which frontends belong together and whose the slots are that
// they have. A slot belongs to the Service, or Service port, of the last plan if that
// still lives. Else, as after a restart or when a port has a new name, it belongs to
// that of the frontends that have it; where these are of several, or some are to
// go, a VIP may have changed its Service meanwhile: it is nobody's.
//
// previous are the frontends of the maps that may have such slots, services those in whose place the
// draft's are; nil where it is of all.
func (d *draft) readModel(previous map[forwarding.FrontendKey]forwarding.Frontend, services map[model.ServiceName]*service) {
	d.readPorts()
	placed := make(map[forwarding.NodeTableSlot]owner, len(d.ports))
	placedEndpoints := make(map[forwarding.EndpointTableSlot]owner, len(d.ports))
	for name, port := range d.ports {
		previous := d.planner.placed[name]
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
		setOwner(d.tableOwners, placed, frontend.Table, port.ofService())
		for number, slot := range frontend.Zones {
			if slot != frontend.Table && number < len(d.model.Zones) {
				setOwner(d.tableOwners, placed, slot, port.in(d.model.Zones[number]))
			}
		}
		setOwner(d.endpointTableOwners, placedEndpoints, frontend.Endpoints, owner{port: port})
	}
	stays := make(map[forwarding.FrontendKey]struct{}, len(previous))
	for _, entry := range d.entries {
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
	d.budgetLocal(services)
	d.keepTables()
}

// keepTables has Service ports that have become Local go on to have their table: connections that
// began under the policy Cluster are where the rows say.
func (d *draft) keepTables() {
	for _, port := range d.ports {
		if own, _ := d.ownTable(port); own != 0 && !port.yields {
			port.spreads = true
		}
	}
}

// readPorts notes which frontends belong together.
func (d *draft) readPorts() {
	// One allocation each: most Service ports have one frontend.
	ports := make([]port, len(d.model.Frontends))
	keys := make([]forwarding.FrontendKey, len(d.model.Frontends))
	for i, frontend := range d.model.Frontends {
		keys[i] = frontend.Key
		name := portOf(frontend)
		p := d.ports[name]
		if p == nil {
			p = &ports[i]
			p.name, p.service, p.first = name, d.service(name.service), frontend
			p.keys = keys[i : i+1 : i+1]
			d.ports[name] = p
			p.service.add(p)
		} else {
			p.keys = append(p.keys, frontend.Key)
		}
		p.spreads = p.spreads || frontend.Spreads()
		d.entries = append(d.entries, entry{frontend, p})
	}
}

func setOwner[S comparable](owners, placed map[S]owner, slot S, of owner) {
	if known, found := placed[slot]; found {
		owners[slot] = known
	} else if have, found := owners[slot]; found && have != of {
		owners[slot] = nobody
	} else {
		owners[slot] = of
	}
}

// setVIPs takes the VIPs that are programmed and as many others as fit.
func (d *draft) setVIPs() {
	count := len(d.have.VIPs)
	for _, vip := range d.vipsByPrecedence() {
		if vip.Occupant != "" {
			continue
		}
		if _, programmed := d.have.VIPs[vip.Address]; !programmed {
			if count >= d.limits.VIPs {
				d.full(model.ObjectReference{Kind: "VIP", Name: millracev1beta1.VIPName(vip.Address)},
					fmt.Sprintf("VIP %s", vip.Address), forwarding.VIPs)
				continue
			}
			count++
		}
		d.want.VIPs[vip.Address] = struct{}{}
	}
}

func (d *draft) hasVIP(address netip.Addr) bool {
	_, found := d.want.VIPs[address]
	return found
}
