// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// draft is a plan in the making.
type draft struct {
	planner  *Planner
	have     *program.State
	model    *model.Model
	limits   program.Limits
	want     *program.State
	problems []model.Problem

	// known are the ids of endpoints that the maps hold or that were given
	// out; usedIDs are all ids that are not free.
	known   map[program.Endpoint]program.EndpointID
	usedIDs map[program.EndpointID]struct{}
	// frontendIDs are the ids that are not free, keptIDs those of frontends
	// that are planned already.
	frontendIDs map[program.FrontendID]struct{}
	keptIDs     map[program.FrontendID]struct{}
	// hashes are by what the data plane finds the frontends of IPv6, programmed or planned.
	hashes map[uint64]program.FrontendKey
	// frontends is how many the map will hold before removals.
	frontends int

	sources       *sourceSets
	tableSlots    *slots[program.TableSlot]
	endpointSlots *slots[program.EndpointSlot]
	// backends are those that have been placed, keys all frontends of each.
	backends map[backend]placement
	keys     map[backend][]program.FrontendKey
	// tableOwners and endpointTableOwners say whose the slots are that
	// frontends have in the maps; nobody's where that is not clear.
	tableOwners         map[program.TableSlot]backend
	endpointTableOwners map[program.EndpointSlot]backend
	// zoned are the backends that have a node table for each zone, by the budget of
	// all nodes; joins are tables that are to go, whose owners join a table's chains.
	zoned map[backend]bool
	joins map[program.TableSlot][]*program.Table
	// spreads are the backends that send, or sent, packets to other nodes, held the node
	// tables that stay as they are.
	spreads map[backend]bool
	held    []program.TableSlot
	// weights and ids are what the tables are computed from, histories what
	// new node tables go on from.
	weights map[program.TableSlot]map[program.NodeID]uint32
	ids     map[program.EndpointSlot]map[program.Endpoint]program.EndpointID

	histories map[program.TableSlot]*program.Table
}

// backend is what frontends on several VIPs have in common: the endpoints of a
// port of a Service in one address family.
type backend struct {
	service  model.ServiceName
	portName string
	protocol uint8
	ipv4     bool
	// zone is whose packets a node table of it is for.
	zone zone
}

// zone is one of the node tables of a backend: the zero one is for packets that this
// node gets from a router, the others for those that nodes of the named zone
// get, with an empty name for nodes without one.
type zone struct {
	other bool
	name  string
}

// in is the backend's table for packets of another zone.
func (b backend) in(name string) backend {
	if b != nobody {
		b.zone = zone{other: true, name: name}
	}
	return b
}

func backendOf(frontend *model.Frontend) backend {
	return backend{
		service:  frontend.Service,
		portName: frontend.PortName,
		protocol: frontend.Key.Protocol,
		ipv4:     frontend.Key.VIP.Is4(),
	}
}

// placement is where the tables of a backend are; zero where it needs none.
type placement struct {
	table     program.TableSlot
	endpoints program.EndpointSlot
	// zones are the node tables of other zones, by the zone's name.
	zones map[string]program.TableSlot
}

func newDraft(p *Planner, have *program.State, m *model.Model, limits program.Limits) *draft {
	d := &draft{
		planner: p, have: have, model: m, limits: limits,
		want:          program.NewState(),
		known:         map[program.Endpoint]program.EndpointID{},
		usedIDs:       map[program.EndpointID]struct{}{},
		frontendIDs:   map[program.FrontendID]struct{}{},
		keptIDs:       map[program.FrontendID]struct{}{},
		hashes:        map[uint64]program.FrontendKey{},
		frontends:     len(have.Frontends),
		sources:       newSourceSets(have, limits.SourceRanges),
		tableSlots:    newSlots[program.TableSlot](limits.Tables),
		endpointSlots: newSlots[program.EndpointSlot](limits.EndpointSlots),
		backends:      map[backend]placement{},
		keys:          map[backend][]program.FrontendKey{},
		spreads:       map[backend]bool{},
		joins:         map[program.TableSlot][]*program.Table{},

		tableOwners:         map[program.TableSlot]backend{},
		endpointTableOwners: map[program.EndpointSlot]backend{},

		weights:   map[program.TableSlot]map[program.NodeID]uint32{},
		ids:       map[program.EndpointSlot]map[program.Endpoint]program.EndpointID{},
		histories: map[program.TableSlot]*program.Table{},
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
	for slot := range d.have.Tables {
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

// nobody is the backend of frontends that are not in the model, and the owner
// of slots that cannot be told whose they are.
var nobody = backend{}

// readModel notes which frontends belong together and whose the slots are that
// they have. A slot belongs to the backend of the last plan if that still
// lives. Else, as after a restart or when a port has a new name, it belongs to
// the backend of the frontends that have it; where these are of several, or
// some are to go, a VIP may have changed its Service meanwhile: it is nobody's.
func (d *draft) readModel() {
	for i := range d.model.Frontends {
		name := backendOf(&d.model.Frontends[i])
		d.keys[name] = append(d.keys[name], d.model.Frontends[i].Key)
		d.spreads[name] = d.spreads[name] || d.model.Frontends[i].Spreads()
	}
	placed := map[program.TableSlot]backend{}
	placedEndpoints := map[program.EndpointSlot]backend{}
	for name, place := range d.planner.placed {
		if len(d.keys[name]) > 0 {
			placed[place.table] = name
			for zone, slot := range place.zones {
				placed[slot] = name.in(zone)
			}
			placedEndpoints[place.endpoints] = name
		}
	}
	names := map[program.FrontendKey]backend{}
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

func setOwner[S comparable](owners, placed map[S]backend, slot S, name backend) {
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
					fmt.Sprintf("VIP %s", vip.Address), shortage{"VIPs", d.limits.VIPs, "--max-vips"})
				continue
			}
			count++
		}
		d.want.VIPs[vip.Address] = struct{}{}
	}
}

// shortage is a map that is full, with the flag that sets its size.
type shortage struct {
	what  string
	limit int
	flag  string
}

func (d *draft) full(object model.ObjectReference, what string, s shortage) {
	d.problems = append(d.problems, model.Problem{
		Object: object,
		Reason: millracev1alpha1.ReasonMapFull,
		Message: fmt.Sprintf("%s: not or not wholly programmed, a node has room for %d %s; raise %s of the agent",
			what, s.limit, s.what, s.flag),
	})
}

func serviceOf(frontend *model.Frontend) model.ObjectReference {
	return model.ObjectReference{Kind: "Service", Namespace: frontend.Service.Namespace, Name: frontend.Service.Name}
}

func (d *draft) frontendFull(frontend *model.Frontend, s shortage) {
	d.full(serviceOf(frontend), fmt.Sprintf("frontend %s", frontend.Key), s)
}

func (d *draft) hasVIP(address netip.Addr) bool {
	_, found := d.want.VIPs[address]
	return found
}
