// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

func (d *draft) addFrontend(entry entry) {
	frontend := entry.Frontend
	before, programmed := d.have.Frontends[frontend.Key]
	if !d.hasVIP(frontend.Key.VIP) {
		d.frontendFull(frontend, forwarding.VIPs)
		return
	}
	if other, free := d.reserveHash(frontend.Key); !free {
		d.sameHash(frontend, other)
		return
	}
	if !programmed {
		if d.frontends >= d.limits.Frontends {
			d.frontendFull(frontend, forwarding.Frontends)
			return
		}
		if lacking, fits := d.fits(entry); !fits {
			d.frontendFull(frontend, lacking)
			return
		}
	}
	id, found := d.frontendID(before.ID)
	if !found {
		d.frontendFull(frontend, forwarding.Frontends)
		return
	}
	ranges, fits := d.sourceSet(frontend)
	if !fits {
		d.sourcesFull(frontend)
		if !programmed {
			return
		}
		// The previous list must be removed first to make room. Until then no client is admitted.
		ranges = forwarding.NoSources
	}
	if !programmed {
		d.frontends++
	}
	place := d.place(entry)
	d.want.Frontends[frontend.Key] = forwarding.Frontend{
		ID: id, Local: frontend.ServesOwn(), Refuses: len(frontend.Weights) == 0,
		Table: place.table, Endpoints: place.endpoints, Affinity: frontend.Affinity, Ranges: ranges,
	}
}

// reserveHash reserves the hash of a frontend. It returns false and the other frontend if the hash is taken.
func (x *index) reserveHash(key forwarding.FrontendKey) (forwarding.FrontendKey, bool) {
	if key.VIP.Is4() {
		return key, true
	}
	hash := key.Hash(x.constants)
	if other, taken := x.hashes[hash]; taken {
		return other, other == key
	}
	x.hashes[hash] = key
	return key, true
}

func (d *draft) frontendID(id forwarding.FrontendID) (forwarding.FrontendID, bool) {
	if _, taken := d.retainedIDs[id]; id == 0 || taken || int64(id) > int64(d.limits.Frontends) {
		next, found := d.planner.frontendIDs.next(d.limits.Frontends, func(number uint32) bool {
			_, used := d.frontendIDs[forwarding.FrontendID(number)]
			return used
		})
		if !found {
			return 0, false
		}
		id = forwarding.FrontendID(next)
		d.frontendIDs[id] = struct{}{}
	}
	d.retainedIDs[id] = struct{}{}
	return id, true
}

func (e entry) needsTable() bool { return e.port.spreads && len(e.Weights) > 0 }

// holdsTable reports whether an existing table is retained unchanged: no endpoint is ready, but connections
// to terminating endpoints still use it.
func (e entry) holdsTable() bool { return e.port.spreads && e.OnlyEstablished }

func (d *draft) fits(entry entry) (forwarding.Capacity, bool) {
	if entry.port.placed {
		return 0, true
	}
	// A Service port without a place has no programmed frontend, because those come first. It needs
	// everything, except a table shared with its Service.
	if entry.needsTable() && entry.port.lineage.slot == 0 {
		if _, free := d.tableSlots.peek(entry.port.spec.size.Rows); !free {
			return forwarding.NodeTables, false
		}
	}
	if _, free := d.endpointSlots.peek(); len(entry.Endpoints) > 0 && !free {
		return forwarding.EndpointTables, false
	}
	missing := 0
	for _, endpoint := range slices.Concat(entry.Endpoints, entry.Draining) {
		if _, known := d.known[endpoint]; !known {
			missing++
		}
	}
	return forwarding.Endpoints, len(d.have.Endpoints)+len(d.allocatedIDs)+missing <= d.limits.Endpoints
}

// place allocates a Service port's slots and its endpoints' ids. If a programmed Service port has outgrown
// the capacity, the rest is left out with a Problem.
func (d *draft) place(entry entry) placement {
	frontend, port := entry.Frontend, entry.port
	if port.placed {
		return port.place
	}
	var place placement
	if port.lineage != nil {
		place.table = d.placeTable(entry)
	}
	shares, complete := d.identify(port, frontend)
	if !complete {
		d.frontendFull(frontend, forwarding.Endpoints)
	}
	if len(shares) > 0 {
		if frontend.Refused > 0 {
			shares[table.Refused] = table.Share{ID: forwarding.RefusedEndpoint, Weight: frontend.Refused}
		}
		slot, found := d.endpointSlot(port)
		if found {
			place.endpoints = slot
			d.shares[slot] = shares
		} else {
			d.frontendFull(frontend, forwarding.EndpointTables)
		}
	}
	port.place, port.placed = place, true
	return place
}

// ownTable returns the slot owned by the Service, and the first slot of the port's frontends in the maps;
// or zero. Among several owned slots it prefers that of the last plan, since the others come from
// frontends of another Service.
func (d *draft) ownTable(port *port) (own, previous forwarding.NodeTableSlot) {
	last := d.planner.placed[port.name]
	for _, key := range port.keys {
		slot := d.have.Frontends[key].Table
		if d.tableOwners[slot] == port.ofService() && d.tableSlots.retain(slot) {
			if last != nil && last.place.table == slot {
				return slot, slot
			}
			own = cmp.Or(own, slot)
		}
		previous = cmp.Or(previous, slot)
	}
	return own, cmp.Or(own, previous)
}

func (d *draft) endpointSlot(port *port) (forwarding.EndpointTableSlot, bool) {
	for _, key := range port.keys {
		slot := d.have.Frontends[key].Endpoints
		if d.endpointTableOwners[slot] == (owner{port: port}) && d.endpointSlots.retain(slot) {
			return slot, true
		}
	}
	return d.endpointSlots.allocate()
}

// identify allocates ids for a Service port's endpoints, ready endpoints first, and returns the shares of
// the ready ones. complete is false if not all fit.
func (d *draft) identify(port *port, frontend *model.Frontend) (usable map[forwarding.Endpoint]table.Share, complete bool) {
	usable, complete = make(map[forwarding.Endpoint]table.Share, len(frontend.Endpoints)), true
	for i, endpoint := range frontend.Endpoints {
		id, found := d.endpointID(port, endpoint)
		if found {
			usable[endpoint] = table.Share{ID: id, Weight: frontend.Share(i)}
		}
		complete = complete && found
	}
	for _, endpoint := range frontend.Draining {
		_, found := d.endpointID(port, endpoint)
		complete = complete && found
	}
	return usable, complete
}

func (d *draft) endpointID(port *port, endpoint forwarding.Endpoint) (forwarding.EndpointID, bool) {
	id, known := d.known[endpoint]
	if !known {
		next, found := d.planner.endpointIDs.next(d.limits.Endpoints, func(number uint32) bool {
			_, used := d.have.Endpoints[forwarding.EndpointID(number)]
			_, given := d.allocatedIDs[forwarding.EndpointID(number)]
			return used || given
		})
		if !found {
			return 0, false
		}
		id = forwarding.EndpointID(next)
		d.known[endpoint] = id
		d.allocatedIDs[id] = struct{}{}
	}
	d.want.Endpoints[id] = endpoint
	port.endpoints = append(port.endpoints, id)
	return id, true
}
