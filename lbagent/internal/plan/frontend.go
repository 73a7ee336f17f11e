// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// addFrontend plans a frontend, its backend's slots and endpoints.
func (d *draft) addFrontend(frontend *model.Frontend) {
	before, programmed := d.have.Frontends[frontend.Key]
	if !d.hasVIP(frontend.Key.VIP) {
		d.frontendFull(frontend, shortage{"VIPs", d.limits.VIPs, "--max-vips"})
		return
	}
	if other, free := d.takeHash(frontend.Key); !free {
		d.sameHash(frontend, other)
		return
	}
	if !programmed {
		if d.frontends >= d.limits.Frontends {
			d.frontendFull(frontend, d.frontendShortage())
			return
		}
		if lacking, fits := d.fits(frontend); !fits {
			d.frontendFull(frontend, lacking)
			return
		}
	}
	id, found := d.frontendID(before.ID)
	if !found {
		d.frontendFull(frontend, d.frontendShortage())
		return
	}
	ranges, fits := d.sourceSet(frontend)
	if !fits {
		d.frontendFull(frontend, d.sourceShortage())
		if !programmed {
			return
		}
		// The former list makes room once it is gone: until then nobody is let in.
		ranges = program.Nobody
	}
	if !programmed {
		d.frontends++
	}
	place := d.place(frontend)
	d.want.Frontends[frontend.Key] = program.Frontend{
		ID: id, Local: frontend.Local, Refuses: len(frontend.Weights) == 0,
		Table: place.table, Endpoints: place.endpoints, Affinity: frontend.Affinity, Ranges: ranges,
	}
}

// takeHash returns false and the frontend that has the hash where that is another one.
func (d *draft) takeHash(key program.FrontendKey) (program.FrontendKey, bool) {
	if key.VIP.Is4() {
		return key, true
	}
	if other, taken := d.hashes[key.Hash()]; taken {
		return other, other == key
	}
	d.hashes[key.Hash()] = key
	return key, true
}

// sameHash tells of a frontend that is left out. Its address was chosen for that, or it is one
// case in 2^64.
func (d *draft) sameHash(frontend *model.Frontend, other program.FrontendKey) {
	d.problems = append(d.problems, model.Problem{
		Object: serviceOf(frontend),
		Reason: millracev1alpha1.ReasonUnsupported,
		Message: fmt.Sprintf("frontend %s: not programmed, its address and port have the same hash as those of %s; give one of the two another address or port",
			frontend.Key, other),
	})
}

func (d *draft) frontendShortage() shortage {
	return shortage{"frontends", d.limits.Frontends, "--max-frontends"}
}

func (d *draft) tableShortage() shortage {
	return shortage{"node tables", d.limits.Tables, "--max-tables"}
}

func (d *draft) endpointSlotShortage() shortage {
	return shortage{"endpoint tables", d.limits.EndpointSlots, "--max-endpoint-tables"}
}

func (d *draft) endpointShortage() shortage {
	return shortage{"endpoints", d.limits.Endpoints, "--max-endpoints"}
}

// frontendID keeps the id that a frontend has or gives it one.
func (d *draft) frontendID(id program.FrontendID) (program.FrontendID, bool) {
	if _, taken := d.keptIDs[id]; id == 0 || taken || int64(id) > int64(d.limits.Frontends) {
		next, found := d.planner.frontendIDs.next(d.limits.Frontends, func(number uint32) bool {
			_, used := d.frontendIDs[program.FrontendID(number)]
			return used
		})
		if !found {
			return 0, false
		}
		id = program.FrontendID(next)
		d.frontendIDs[id] = struct{}{}
	}
	d.keptIDs[id] = struct{}{}
	return id, true
}

// needsTable tells whether a frontend, or another one of its backend, sends
// packets to other nodes.
func (d *draft) needsTable(frontend *model.Frontend) bool {
	return d.spreads[backendOf(frontend)] && len(frontend.Weights) > 0
}

// holdsTable tells whether a table is kept as it is if there is one: no endpoint
// is usable, but connections of one that lives still find it by the table.
func (d *draft) holdsTable(frontend *model.Frontend) bool {
	return d.spreads[backendOf(frontend)] && frontend.Living
}

// fits tells whether there is room for a backend as a whole, and if not, what
// is lacking.
func (d *draft) fits(frontend *model.Frontend) (shortage, bool) {
	name := backendOf(frontend)
	if _, placed := d.backends[name]; placed {
		return shortage{}, true
	}
	// A backend without a place has no programmed frontend, those come first:
	// it needs everything anew.
	if _, free := d.tableSlots.peek(); d.needsTable(frontend) && !free {
		return d.tableShortage(), false
	}
	if _, free := d.endpointSlots.peek(); len(frontend.Endpoints) > 0 && !free {
		return d.endpointSlotShortage(), false
	}
	missing := 0
	for _, endpoint := range slices.Concat(frontend.Endpoints, frontend.Draining) {
		if _, known := d.known[endpoint]; !known {
			missing++
		}
	}
	return d.endpointShortage(), len(d.usedIDs)+missing <= d.limits.Endpoints
}

// place gives a backend its slots and its endpoints their ids. What does not
// fit, because a programmed backend has grown, is left out with a Problem.
func (d *draft) place(frontend *model.Frontend) placement {
	name := backendOf(frontend)
	if place, placed := d.backends[name]; placed {
		return place
	}
	var place placement
	if d.needsTable(frontend) {
		slot, found := d.tableSlot(name)
		if found {
			place.table = slot
			d.weights[slot] = frontend.Weights
		} else {
			d.frontendFull(frontend, d.tableShortage())
		}
	} else if d.holdsTable(frontend) {
		if own, _ := d.ownTable(name); d.have.Tables[own] != nil {
			place.table = own
			d.held = append(d.held, own)
		}
	}
	ids, complete := d.identify(frontend)
	if !complete {
		d.frontendFull(frontend, d.endpointShortage())
	}
	if len(ids) > 0 {
		slot, found := d.endpointSlot(name)
		if found {
			place.endpoints = slot
			d.ids[slot] = ids
		} else {
			d.frontendFull(frontend, d.endpointSlotShortage())
		}
	}
	d.backends[name] = place
	return place
}

// tableSlot returns the slot of the backend's node table: the one that its
// frontends have in the maps, else a free one, which then goes on from the
// table that they have, because connections may be with its former owners.
func (d *draft) tableSlot(name backend) (program.TableSlot, bool) {
	own, former := d.ownTable(name)
	if own != 0 {
		return own, true
	}
	slot, found := d.tableSlots.take()
	if found {
		d.histories[slot] = d.have.Tables[former]
	}
	return slot, found
}

// ownTable returns the slot that is the backend's own, and the first of those
// that its frontends have in the maps; zero where there is none.
func (d *draft) ownTable(name backend) (own, former program.TableSlot) {
	for _, key := range d.keys[name] {
		slot := d.have.Frontends[key].Table
		if d.tableOwners[slot] == name && d.tableSlots.keep(slot) {
			return slot, slot
		}
		former = cmp.Or(former, slot)
	}
	return 0, former
}

// endpointSlot is tableSlot for the endpoint table, which has no history.
func (d *draft) endpointSlot(name backend) (program.EndpointSlot, bool) {
	for _, key := range d.keys[name] {
		slot := d.have.Frontends[key].Endpoints
		if d.endpointTableOwners[slot] == name && d.endpointSlots.keep(slot) {
			return slot, true
		}
	}
	return d.endpointSlots.take()
}

// identify gives the frontend's endpoints ids, the usable ones first, and
// returns those of the usable ones; complete is false where not all fit.
func (d *draft) identify(frontend *model.Frontend) (usable map[program.Endpoint]program.EndpointID, complete bool) {
	usable, complete = map[program.Endpoint]program.EndpointID{}, true
	for _, endpoint := range frontend.Endpoints {
		id, found := d.endpointID(endpoint)
		if found {
			usable[endpoint] = id
		}
		complete = complete && found
	}
	for _, endpoint := range frontend.Draining {
		_, found := d.endpointID(endpoint)
		complete = complete && found
	}
	return usable, complete
}

// endpointID keeps the id that an endpoint has or gives it one.
func (d *draft) endpointID(endpoint program.Endpoint) (program.EndpointID, bool) {
	id, known := d.known[endpoint]
	if !known {
		next, found := d.planner.endpointIDs.next(d.limits.Endpoints, func(number uint32) bool {
			_, used := d.usedIDs[program.EndpointID(number)]
			return used
		})
		if !found {
			return 0, false
		}
		id = program.EndpointID(next)
		d.known[endpoint] = id
		d.usedIDs[id] = struct{}{}
	}
	d.want.Endpoints[id] = endpoint
	return id, true
}
