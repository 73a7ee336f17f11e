// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// stage1 is where a packet that a router handed to a node may end. Where that node has learned
// who holds the flow, there; a flow that is over there, or that the holder has lost, goes by
// its row as if nothing had been learned.
func (c Cluster) stage1(at program.NodeID, p packet, frontend program.Frontend, view View) []Target {
	hash, _ := p.hash(frontend)
	number := hash / (1 << 32 / program.Rows)
	rows := rowsOf(c[at].State, frontend, number)
	byRow := func() []Target {
		return c.byRow(rows, p, view, view.Moved(frontend.Table, number))
	}
	holder, learned := view.Learned(at, p.Flow)
	if learned == No || holder == rows[0].Primary || c[holder].State == nil {
		return byRow()
	}
	entry, ok := view.Knows(holder, p.Flow)
	if !ok || p.replaces(entry) {
		return byRow()
	}
	held := Target{Node: holder, Endpoint: entry.Endpoint}
	if learned == Maybe || entry.Yields {
		return append(byRow(), held)
	}
	return []Target{held}
}

// rowsOf are the row of a number by the node's own zone, and behind it those of the other
// zones, in the order in which they are asked.
func rowsOf(state *program.State, frontend program.Frontend, number uint32) []program.Row {
	rows := []program.Row{state.Tables[frontend.Table][number]}
	for on := range program.Zones {
		slot := frontend.Zones[(int(state.Self.Zone)+on)%program.Zones]
		if slot != 0 && on > 0 {
			rows = append(rows, state.Tables[slot][number])
		}
	}
	return rows
}

// byRow is where a packet on one of the rows may end, of which the first is its own. The
// primary has what nobody knows, and serves what it knows itself. Of others it asks, in
// their order, for a packet of an earlier connection, and for a datagram if its row moved
// lately.
func (c Cluster) byRow(rows []program.Row, p packet, view View, moved Doubt) []Target {
	asked := Yes
	switch {
	case p.Protocol == UDP:
		asked = moved
	case !p.midstream():
		asked = No
	}
	primary := rows[0].Primary
	var targets []Target
	if entry, ok := view.Knows(primary, p.Flow); ok {
		if !p.replaces(entry) {
			targets = append(targets, Target{Node: primary, Endpoint: entry.Endpoint})
		}
		if !entry.Yields && len(targets) > 0 {
			return targets
		}
	}
	if asked != Yes {
		targets = append(targets, c.choose(primary, p.Flow, view))
	}
	if asked == No {
		return targets
	}
	for _, id := range way(rows) {
		entry, ok := view.Knows(id, p.Flow)
		if !ok || id == primary || c[id].State == nil {
			continue
		}
		targets = append(targets, Target{Node: id, Endpoint: entry.Endpoint})
		if !entry.Yields {
			return targets
		}
	}
	return append(targets, c.choose(primary, p.Flow, view))
}

// way are the nodes that are asked, in their order.
func way(rows []program.Row) []program.NodeID {
	var nodes []program.NodeID
	for _, row := range rows {
		nodes = append(append(nodes, row.Primary), row.Chain[:]...)
	}
	return slices.DeleteFunc(nodes, func(id program.NodeID) bool { return id == 0 })
}

// replaces tells of a packet that begins a flow anew where an earlier one is over.
func (p packet) replaces(entry Entry) bool { return entry.Over && !p.midstream() }

// serve is stage 2: the endpoint that the flow has on the node, or gets.
func (c Cluster) serve(at program.NodeID, p packet, view View) []Target {
	entry, ok := view.Knows(at, p.Flow)
	if !ok || p.replaces(entry) {
		return []Target{c.choose(at, p.Flow, view)}
	}
	targets := []Target{{Node: at, Endpoint: entry.Endpoint}}
	if entry.Yields && !p.midstream() {
		targets = append(targets, c.choose(at, p.Flow, view))
	}
	return targets
}

// choose is the endpoint that a new flow gets on the node, if the frontend has any there: under
// session affinity that of the client's last flows, as long as it takes new ones.
func (c Cluster) choose(at program.NodeID, flow Flow, view View) Target {
	state := c[at].State
	frontend := state.Frontends[program.FrontendKey{VIP: flow.VIP.Addr(), Port: flow.VIP.Port(), Protocol: flow.Protocol}]
	if frontend.Endpoints == 0 {
		return Target{Node: at}
	}
	table := state.EndpointTables[frontend.Endpoints]
	if frontend.Affinity != 0 {
		kept, ok := view.Keeps(at, frontend.Endpoints, flow.Client.Addr())
		if ok && slices.Contains(table[:], kept) {
			return Target{Node: at, Endpoint: kept}
		}
	}
	_, hash := flow.hash(frontend)
	return Target{Node: at, Endpoint: table[hash/(1<<32/program.EndpointRows)]}
}
