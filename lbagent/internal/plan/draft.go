// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
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

	// known are the ids of endpoints that the maps hold or that were given
	// out; usedIDs are all ids that are not free.
	known   map[forwarding.Endpoint]forwarding.EndpointID
	usedIDs map[forwarding.EndpointID]struct{}
	// frontendIDs are the ids that are not free, keptIDs those of frontends
	// that are planned already.
	frontendIDs map[forwarding.FrontendID]struct{}
	keptIDs     map[forwarding.FrontendID]struct{}
	// hashes are by what the data plane finds the IPv6 frontends, programmed or planned.
	hashes map[uint64]forwarding.FrontendKey
	// frontends is how many the map will hold before removals.
	frontends int

	sources       *sourceSets
	tableSlots    *slots[forwarding.NodeTableSlot]
	endpointSlots *slots[forwarding.EndpointTableSlot]
	// places are of the Service ports that have been placed, keys all frontends of each.
	places map[servicePort]placement
	keys   map[servicePort][]forwarding.FrontendKey
	// tableOwners and endpointTableOwners say whose the slots are that
	// frontends have in the maps; nobody's where that is not clear.
	tableOwners         map[forwarding.NodeTableSlot]servicePort
	endpointTableOwners map[forwarding.EndpointTableSlot]servicePort
	// zoned are the Service ports that have a node table for each zone, by the budget of
	// all nodes; joins are tables that are to go, whose owners join a table's chains.
	zoned map[servicePort]bool
	joins map[forwarding.NodeTableSlot][]*forwarding.NodeTable
	// spreads are the Service ports that send, or sent, packets to other nodes, held the node
	// tables that stay as they are.
	spreads map[servicePort]bool
	held    []forwarding.NodeTableSlot
	// weights and shares are what the tables are computed from, histories what
	// new node tables go on from.
	weights map[forwarding.NodeTableSlot]map[forwarding.NodeID]uint32
	shares  map[forwarding.EndpointTableSlot]map[forwarding.Endpoint]table.Share

	histories map[forwarding.NodeTableSlot]*forwarding.NodeTable
}

// servicePort is what frontends on several VIPs have in common: the endpoints of a
// port of a Service in one address family.
type servicePort struct {
	service  model.ServiceName
	portName string
	protocol uint8
	ipv4     bool
	// zone is whose packets a node table of it is for.
	zone zone
}

// zone is one of the node tables of a Service port: the zero one is for packets that this
// node gets from a router, the others for those that nodes of the named zone
// get, with an empty name for nodes without one.
type zone struct {
	other bool
	name  string
}

// in is the Service port's table for packets of another zone.
func (p servicePort) in(name string) servicePort {
	if p != nobody {
		p.zone = zone{other: true, name: name}
	}
	return p
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

func newDraft(p *Planner, have *forwarding.State, m *model.Model, limits forwarding.Limits) *draft {
	d := &draft{
		planner: p, have: have, model: m, limits: limits,
		want:          forwarding.NewState(),
		known:         map[forwarding.Endpoint]forwarding.EndpointID{},
		usedIDs:       map[forwarding.EndpointID]struct{}{},
		frontendIDs:   map[forwarding.FrontendID]struct{}{},
		keptIDs:       map[forwarding.FrontendID]struct{}{},
		hashes:        map[uint64]forwarding.FrontendKey{},
		frontends:     len(have.Frontends),
		sources:       newSourceSets(have, limits.SourceRanges),
		tableSlots:    newSlots[forwarding.NodeTableSlot](limits.NodeTables),
		endpointSlots: newSlots[forwarding.EndpointTableSlot](limits.EndpointTables),
		places:        map[servicePort]placement{},
		keys:          map[servicePort][]forwarding.FrontendKey{},
		spreads:       map[servicePort]bool{},
		joins:         map[forwarding.NodeTableSlot][]*forwarding.NodeTable{},

		tableOwners:         map[forwarding.NodeTableSlot]servicePort{},
		endpointTableOwners: map[forwarding.EndpointTableSlot]servicePort{},

		weights:   map[forwarding.NodeTableSlot]map[forwarding.NodeID]uint32{},
		shares:    map[forwarding.EndpointTableSlot]map[forwarding.Endpoint]table.Share{},
		histories: map[forwarding.NodeTableSlot]*forwarding.NodeTable{},
	}
	d.readState()
	d.readModel()
	return d
}

// readState notes what the maps hold and what is therefore not free.
func (d *draft) readState() {
	for id, endpoint := range d.have.Endpoints {
		d.usedIDs[id] = struct{}{}
		if first, found := d.known[endpoint]; int64(id) <= int64(d.limits.Endpoints) && (!found || id < first) {
			d.known[endpoint] = id
		}
	}
	for slot := range d.have.NodeTables {
		d.tableSlots.use(slot)
	}
	for slot := range d.have.EndpointTables {
		d.endpointSlots.use(slot)
	}
	for key, frontend := range d.have.Frontends {
		d.takeHash(key)
		d.frontendIDs[frontend.ID] = struct{}{}
		d.tableSlots.use(frontend.Table)
		for _, slot := range frontend.Zones {
			d.tableSlots.use(slot)
		}
		d.endpointSlots.use(frontend.Endpoints)
	}
}

// nobody is the Service port of frontends that are not in the model, and the owner
// of slots that cannot be told whose they are.
var nobody = servicePort{}

// readModel notes which frontends belong together and whose the slots are that
// they have. A slot belongs to the Service port of the last plan if that still
// lives. Else, as after a restart or when a port has a new name, it belongs to
// the Service port of the frontends that have it; where these are of several, or
// some are to go, a VIP may have changed its Service meanwhile: it is nobody's.
func (d *draft) readModel() {
	for i := range d.model.Frontends {
		name := portOf(&d.model.Frontends[i])
		d.keys[name] = append(d.keys[name], d.model.Frontends[i].Key)
		d.spreads[name] = d.spreads[name] || d.model.Frontends[i].Spreads()
	}
	placed := map[forwarding.NodeTableSlot]servicePort{}
	placedEndpoints := map[forwarding.EndpointTableSlot]servicePort{}
	for name, place := range d.planner.placed {
		if len(d.keys[name]) > 0 {
			placed[place.table] = name
			for zone, slot := range place.zones {
				placed[slot] = name.in(zone)
			}
			placedEndpoints[place.endpoints] = name
		}
	}
	names := map[forwarding.FrontendKey]servicePort{}
	for name, keys := range d.keys {
		for _, key := range keys {
			names[key] = name
		}
	}
	for key, frontend := range d.have.Frontends {
		name := names[key]
		setOwner(d.tableOwners, placed, frontend.Table, name)
		for number, slot := range frontend.Zones {
			if slot != frontend.Table && number < len(d.model.Zones) {
				setOwner(d.tableOwners, placed, slot, name.in(d.model.Zones[number]))
			}
		}
		setOwner(d.endpointTableOwners, placedEndpoints, frontend.Endpoints, name)
	}
	// One that has become Local goes on to have its table: connections that began
	// under the policy Cluster are where the rows say.
	for name := range d.keys {
		if own, _ := d.ownTable(name); own != 0 {
			d.spreads[name] = true
		}
	}
}

func setOwner[S comparable](owners, placed map[S]servicePort, slot S, name servicePort) {
	if owner, known := placed[slot]; known {
		owners[slot] = owner
	} else if owner, found := owners[slot]; found && owner != name {
		owners[slot] = nobody
	} else {
		owners[slot] = name
	}
}

// setVIPs takes the VIPs that are programmed and as many others as fit.
func (d *draft) setVIPs() {
	count := len(d.have.VIPs)
	for _, vip := range d.model.VIPs {
		if _, programmed := d.have.VIPs[vip.Address]; !programmed {
			if count >= d.limits.VIPs {
				d.full(model.ObjectReference{Kind: "VIP", Name: millracev1alpha1.VIPName(vip.Address)},
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
