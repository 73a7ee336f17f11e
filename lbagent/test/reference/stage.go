// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// stage1 is where a packet from a router may end, by its ingress node. With an exception that is
// the node that holds the flow. If the flow is over there, or lost, the packet goes by its row
// as if there were no exception.
func (c Cluster) stage1(at forwarding.NodeID, p packet, frontend forwarding.Frontend, knowledge Knowledge) []Target {
	hash, _ := p.hash(frontend)
	rows := c.rowsOf(at, frontend, hash, knowledge)
	byRow := func() []Target {
		return c.byRow(at, hash, p, frontend, knowledge)
	}
	holder, learned := knowledge.Learned(at, p.Flow)
	if learned == No || holder == rows[0].Primary || c[holder].State == nil {
		return byRow()
	}
	entry, ok := knowledge.Knows(holder, p.Flow)
	if !ok || p.replaces(entry) || p.asksFirst(entry) {
		return byRow()
	}
	held := Target{Node: holder, Endpoint: entry.Endpoint}
	if learned == Maybe || entry.Yields {
		return append(byRow(), held)
	}
	return []Target{held}
}

// askedRow is a row, and whether its chain is asked.
type askedRow struct {
	forwarding.Row
	asked bool
}

// rowsOf are the rows that a hash picks, as the node has them: that of its own zone, then those of the other
// zones, in the order in which they are asked. The chain is asked if it has a history, or if a row of
// the group has moved: ranks alone are asked nothing.
func (c Cluster) rowsOf(at forwarding.NodeID, frontend forwarding.Frontend, hash uint32, knowledge Knowledge) []askedRow {
	state := c[at].State
	slots := []forwarding.NodeTableSlot{frontend.Table}
	for on := range forwarding.Zones {
		slot := frontend.Zones[(int(state.Self.Zone)+on)%forwarding.Zones]
		if slot != 0 && on > 0 {
			slots = append(slots, slot)
		}
	}
	rows := make([]askedRow, len(slots))
	for i, slot := range slots {
		number := slot.Row(hash)
		row := (*state.NodeTables[slot])[number]
		rows[i] = askedRow{Row: row, asked: row.History > 0 || knowledge.IsYoung(at, slot, number)}
	}
	return rows
}

// byRow is where a packet may end by its rows, those that a hash picks. The first is its own, whose
// primary serves flows that it knows, and those that no node knows. Midstream packets ask the other
// nodes before, in their order, and so do datagrams if their row moved lately. The limit for
// packets that no node knows is outside the model.
func (c Cluster) byRow(
	at forwarding.NodeID, hash uint32, p packet, frontend forwarding.Frontend, knowledge Knowledge,
) []Target {
	rows := c.rowsOf(at, frontend, hash, knowledge)
	asked := Yes
	switch {
	case p.Protocol == UDP:
		asked = knowledge.Moved(frontend.Table, frontend.Table.Row(hash))
	case !p.midstream():
		asked = No
	}
	primary := rows[0].Primary
	var targets []Target
	entry, known := knowledge.Knows(primary, p.Flow)
	unproved := known && p.asksFirst(entry)
	if known && !unproved {
		if !p.replaces(entry) {
			targets = append(targets, Target{Node: primary, Endpoint: entry.Endpoint})
		}
		if !entry.Yields && len(targets) > 0 {
			return targets
		}
	}
	if asked != Yes {
		targets = append(targets, c.choose(primary, p, knowledge))
	}
	if asked == No {
		return targets
	}
	others, found := c.ask(at, path(rows), p, frontend, knowledge)
	if targets = append(targets, others...); found {
		return targets
	}
	if unproved {
		return append(targets, Target{Node: primary, Endpoint: entry.Endpoint})
	}
	return append(targets, c.choose(primary, p, knowledge))
}

// asksFirst reports whether the packet goes to other nodes before the node with the entry takes it.
func (p packet) asksFirst(entry Entry) bool {
	return entry.Unproved && p.midstream() && p.acknowledged-entry.Offer >= entry.OfferWindow
}

// path is the nodes that are asked, in their order: of each row the primary, and perhaps the chain.
func path(rows []askedRow) []forwarding.NodeID {
	var nodes []forwarding.NodeID
	for _, row := range rows {
		nodes = append(nodes, row.Primary)
		if row.asked {
			nodes = append(nodes, row.Chain[:]...)
		}
	}
	return slices.DeleteFunc(nodes, func(id forwarding.NodeID) bool { return id == 0 })
}

// replaces reports whether the packet begins a flow again after an earlier one that is over.
func (p packet) replaces(entry Entry) bool { return entry.Over && !p.midstream() }

// local is where a packet of a Local frontend may end. Nodes with endpoints serve what they know
// and what is new. With a table they ask others for what is neither, and before that use what they
// learned. Nodes without endpoints send it by the table.
func (c Cluster) local(at forwarding.NodeID, p packet, frontend forwarding.Frontend, knowledge Knowledge) []Target {
	if frontend.Table == 0 || p.Protocol == UDP {
		return c.serve(at, p, knowledge)
	}
	var targets []Target
	entry, known := knowledge.Knows(at, p.Flow)
	if frontend.Endpoints == 0 && !known {
		return c.stage1(at, p, frontend, knowledge)
	}
	unproved := known && p.asksFirst(entry)
	if known && !p.replaces(entry) && !unproved {
		targets = []Target{{Node: at, Endpoint: entry.Endpoint}}
		if !entry.Yields {
			return targets
		}
	}
	held, found := c.holderBy(at, at, p, knowledge)
	if targets = append(targets, held...); found {
		return targets
	}
	if p.midstream() {
		hash, _ := p.hash(frontend)
		rows := c.rowsOf(at, frontend, hash, knowledge)
		asked := slices.DeleteFunc(path(rows), func(id forwarding.NodeID) bool { return id == at })
		// The primary takes a place of the chain.
		others, found := c.ask(at, asked[:min(len(asked), forwarding.ChainLength)], p, frontend, knowledge)
		if targets = append(targets, others...); found {
			return targets
		}
	}
	if unproved {
		return append(targets, Target{Node: at, Endpoint: entry.Endpoint})
	}
	return append(targets, c.choose(at, p, knowledge))
}

// holderBy is where a packet of a Local frontend goes by what a node was told of its flow. found is
// false where that is nothing, or may be wrong.
func (c Cluster) holderBy(node, at forwarding.NodeID, p packet, knowledge Knowledge) (held []Target, found bool) {
	holder, told := knowledge.Learned(node, p.Flow)
	if told == No || holder == node || holder == at || c[holder].State == nil {
		return nil, false
	}
	entry, known := knowledge.Knows(holder, p.Flow)
	if !known || p.replaces(entry) || p.asksFirst(entry) {
		return nil, false
	}
	return []Target{{Node: holder, Endpoint: entry.Endpoint}}, !entry.Yields
}

// ask is where a packet from a router at a node may end by those that are asked one after another.
// found is false where none surely has the flow. One that was told of the flow of a Local frontend
// hands it to the holder; the first that was told does so, though it may be wrong.
func (c Cluster) ask(
	at forwarding.NodeID, asked []forwarding.NodeID, p packet, frontend forwarding.Frontend, knowledge Knowledge,
) (targets []Target, found bool) {
	led := !frontend.Local
	for _, id := range asked {
		if c[id].State == nil {
			continue
		}
		if entry, known := knowledge.Knows(id, p.Flow); known && !p.asksFirst(entry) {
			targets = append(targets, Target{Node: id, Endpoint: entry.Endpoint})
			if !entry.Yields {
				return targets, true
			}
		}
		if led || id == at {
			continue
		}
		held, right := c.holderBy(id, at, p, knowledge)
		if targets = append(targets, held...); right {
			return targets, true
		}
		_, told := knowledge.Learned(id, p.Flow)
		led = told != No
	}
	return targets, false
}

// serve is stage 2: the endpoint that the flow has on the node, or gets.
func (c Cluster) serve(at forwarding.NodeID, p packet, knowledge Knowledge) []Target {
	entry, ok := knowledge.Knows(at, p.Flow)
	if !ok || p.replaces(entry) {
		return []Target{c.choose(at, p, knowledge)}
	}
	targets := []Target{{Node: at, Endpoint: entry.Endpoint}}
	if entry.Yields && !p.midstream() {
		targets = append(targets, c.choose(at, p, knowledge))
	}
	return targets
}

// nextRows is in how many rows a midstream packet finds one that does not refuse. The tables of
// the test have none that refuse so many in a row.
const nextRows = 64

// choose is the endpoint that a new flow gets on the node, if the frontend has any there. Under
// session affinity it is that of the client's last flows, while it takes new ones. A row may refuse
// new flows. Midstream packets are not refused: they get the endpoint of the next row that has
// one.
func (c Cluster) choose(at forwarding.NodeID, p packet, knowledge Knowledge) Target {
	state, flow := c[at].State, p.Flow
	frontend := state.Frontends[forwarding.FrontendKey{VIP: flow.VIP.Addr(), Port: flow.VIP.Port(), Protocol: flow.Protocol}]
	if frontend.Endpoints == 0 {
		return Target{Node: at}
	}
	table := state.EndpointTables[frontend.Endpoints]
	if frontend.Affinity != 0 {
		kept, ok := knowledge.Keeps(at, frontend.Endpoints, flow)
		if ok && slices.Contains(table[:], kept) {
			return Target{Node: at, Endpoint: kept}
		}
	}
	_, hash := flow.hash(frontend)
	row := int(hash / (1 << 32 / forwarding.EndpointRows))
	for range nextRows {
		if table[row] != forwarding.RefusedEndpoint || !p.midstream() {
			return Target{Node: at, Endpoint: table[row]}
		}
		row = (row + 1) % forwarding.EndpointRows
	}
	return Target{Node: at}
}
