// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

func (b *builder) addFrontend(entry entry) {
	frontend := entry.Frontend
	before, programmed := b.have.Frontends[frontend.Key]
	if !b.hasVIP(frontend.Key.VIP) {
		b.frontendFull(frontend, forwarding.VIPs)
		return
	}
	if other, free := b.reserveHash(frontend.Key); !free {
		b.sameHash(frontend, other)
		return
	}
	if !programmed {
		if b.frontends >= b.limits.Frontends {
			b.frontendFull(frontend, forwarding.Frontends)
			return
		}
		if lacking, fits := b.fits(entry); !fits {
			b.frontendFull(frontend, lacking)
			return
		}
	}
	id, found := b.frontendID(before.ID)
	if !found {
		b.frontendFull(frontend, forwarding.Frontends)
		return
	}
	ranges, fits := b.sourceSet(frontend)
	if !fits {
		b.sourcesFull(frontend)
		if !programmed {
			return
		}
		// The previous list must be removed first to make room. Until then no client is admitted.
		ranges = forwarding.NoSources
	}
	if !programmed {
		b.frontends++
	}
	place := b.place(entry)
	b.want.Frontends[frontend.Key] = forwarding.Frontend{
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

func (b *builder) frontendID(id forwarding.FrontendID) (forwarding.FrontendID, bool) {
	if _, taken := b.retainedIDs[id]; id == 0 || taken || int64(id) > int64(b.limits.Frontends) {
		next, found := b.planner.frontendIDs.next(b.limits.Frontends, func(number uint32) bool {
			_, used := b.frontendIDs[forwarding.FrontendID(number)]
			return used
		})
		if !found {
			return 0, false
		}
		id = forwarding.FrontendID(next)
		b.frontendIDs[id] = struct{}{}
	}
	b.retainedIDs[id] = struct{}{}
	return id, true
}

func (e entry) needsTable() bool { return e.port.spreads && len(e.Weights) > 0 }

// holdsTable reports whether an existing table is retained unchanged: no endpoint is ready, but connections
// to terminating endpoints still use it.
func (e entry) holdsTable() bool { return e.port.spreads && e.OnlyEstablished }

func (b *builder) fits(entry entry) (forwarding.Capacity, bool) {
	if entry.port.placed {
		return 0, true
	}
	// A Service port without a place has no programmed frontend, because those come first. It needs
	// everything, except a table shared with its Service.
	if entry.needsTable() && entry.port.lineage.slot == 0 {
		if _, free := b.tableSlots.peek(entry.port.spec.size.Rows); !free {
			return forwarding.NodeTables, false
		}
	}
	if _, free := b.endpointSlots.peek(); len(entry.Endpoints) > 0 && !free {
		return forwarding.EndpointTables, false
	}
	missing := 0
	for _, endpoint := range slices.Concat(entry.Endpoints, entry.Draining) {
		if _, known := b.known[endpoint]; !known {
			missing++
		}
	}
	return forwarding.Endpoints, len(b.have.Endpoints)+len(b.allocatedIDs)+missing <= b.limits.Endpoints
}

// place allocates a Service port's slots and its endpoints' ids. If a programmed Service port has outgrown
// the capacity, the rest is left out with a Problem.
func (b *builder) place(entry entry) placement {
	frontend, port := entry.Frontend, entry.port
	if port.placed {
		return port.place
	}
	var place placement
	if port.lineage != nil {
		place.table = b.placeTable(entry)
	}
	shares, complete := b.identify(port, frontend)
	if !complete {
		b.frontendFull(frontend, forwarding.Endpoints)
	}
	if len(shares) > 0 {
		if frontend.Refused > 0 {
			shares[table.Refused] = table.Share{ID: forwarding.RefusedEndpoint, Weight: frontend.Refused}
		}
		slot, found := b.endpointSlot(port)
		if found {
			place.endpoints = slot
			b.shares[slot] = shares
		} else {
			b.frontendFull(frontend, forwarding.EndpointTables)
		}
	}
	port.place, port.placed = place, true
	return place
}

// ownTable returns the slot owned by the Service, and the first slot of the port's frontends in the maps;
// or zero. Among several owned slots it prefers that of the last plan, since the others come from
// frontends of another Service.
func (b *builder) ownTable(port *port) (own, previous forwarding.NodeTableSlot) {
	last := b.planner.placed[port.name]
	for _, key := range port.keys {
		slot := b.have.Frontends[key].Table
		if b.tableOwners[slot] == port.ofService() && b.tableSlots.retain(slot) {
			if last != nil && last.place.table == slot {
				return slot, slot
			}
			own = cmp.Or(own, slot)
		}
		previous = cmp.Or(previous, slot)
	}
	return own, cmp.Or(own, previous)
}

func (b *builder) endpointSlot(port *port) (forwarding.EndpointTableSlot, bool) {
	for _, key := range port.keys {
		slot := b.have.Frontends[key].Endpoints
		if b.endpointTableOwners[slot] == (owner{port: port}) && b.endpointSlots.retain(slot) {
			return slot, true
		}
	}
	return b.endpointSlots.allocate()
}

// identify allocates ids for a Service port's endpoints, ready endpoints first, and returns the shares of
// the ready ones. complete is false if not all fit.
func (b *builder) identify(port *port, frontend *model.Frontend) (usable map[forwarding.Endpoint]table.Share, complete bool) {
	usable, complete = make(map[forwarding.Endpoint]table.Share, len(frontend.Endpoints)), true
	for i, endpoint := range frontend.Endpoints {
		id, found := b.endpointID(port, endpoint)
		if found {
			usable[endpoint] = table.Share{ID: id, Weight: frontend.Share(i)}
		}
		complete = complete && found
	}
	for _, endpoint := range frontend.Draining {
		_, found := b.endpointID(port, endpoint)
		complete = complete && found
	}
	return usable, complete
}

func (b *builder) endpointID(port *port, endpoint forwarding.Endpoint) (forwarding.EndpointID, bool) {
	id, known := b.known[endpoint]
	if !known {
		next, found := b.planner.endpointIDs.next(b.limits.Endpoints, func(number uint32) bool {
			_, used := b.have.Endpoints[forwarding.EndpointID(number)]
			_, given := b.allocatedIDs[forwarding.EndpointID(number)]
			return used || given
		})
		if !found {
			return 0, false
		}
		id = forwarding.EndpointID(next)
		b.known[endpoint] = id
		b.allocatedIDs[id] = struct{}{}
	}
	b.want.Endpoints[id] = endpoint
	port.endpoints = append(port.endpoints, id)
	return id, true
}
