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
	number := hash / (1 << 32 / forwarding.Rows)
	rows := rowsOf(c[at].State, frontend, number)
	byRow := func() []Target {
		return c.byRow(rows, p, knowledge, knowledge.Moved(frontend.Table, number))
	}
	holder, learned := knowledge.Learned(at, p.Flow)
	if learned == No || holder == rows[0].Primary || c[holder].State == nil {
		return byRow()
	}
	entry, ok := knowledge.Knows(holder, p.Flow)
	if !ok || p.replaces(entry) {
		return byRow()
	}
	held := Target{Node: holder, Endpoint: entry.Endpoint}
	if learned == Maybe || entry.Yields {
		return append(byRow(), held)
	}
	return []Target{held}
}

// rowsOf are the rows of a number: that of the node's own zone, then those of the other zones, in
// the order in which they are asked.
func rowsOf(state *forwarding.State, frontend forwarding.Frontend, number uint32) []forwarding.Row {
	rows := []forwarding.Row{state.NodeTables[frontend.Table][number]}
	for on := range forwarding.Zones {
		slot := frontend.Zones[(int(state.Self.Zone)+on)%forwarding.Zones]
		if slot != 0 && on > 0 {
			rows = append(rows, state.NodeTables[slot][number])
		}
	}
	return rows
}

// byRow is where a packet may end by its rows, of which the first is its own. The primary serves
// flows that it knows, and those that no node knows. Midstream packets ask the other nodes
// before, in their order, and so do datagrams if their row moved lately. The limit for packets
// that no node knows is outside the model.
func (c Cluster) byRow(rows []forwarding.Row, p packet, knowledge Knowledge, moved Doubt) []Target {
	asked := Yes
	switch {
	case p.Protocol == UDP:
		asked = moved
	case !p.midstream():
		asked = No
	}
	primary := rows[0].Primary
	var targets []Target
	if entry, ok := knowledge.Knows(primary, p.Flow); ok {
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
	for _, id := range path(rows) {
		entry, ok := knowledge.Knows(id, p.Flow)
		if !ok || id == primary || c[id].State == nil {
			continue
		}
		targets = append(targets, Target{Node: id, Endpoint: entry.Endpoint})
		if !entry.Yields {
			return targets
		}
	}
	return append(targets, c.choose(primary, p, knowledge))
}

// path is the nodes that are asked, in their order: of each row the primary, and the chain if it
// has a history. Ranks alone are asked nothing.
func path(rows []forwarding.Row) []forwarding.NodeID {
	var nodes []forwarding.NodeID
	for _, row := range rows {
		nodes = append(nodes, row.Primary)
		if row.History > 0 {
			nodes = append(nodes, row.Chain[:]...)
		}
	}
	return slices.DeleteFunc(nodes, func(id forwarding.NodeID) bool { return id == 0 })
}

// replaces reports whether the packet begins a flow again after an earlier one that is over.
func (p packet) replaces(entry Entry) bool { return entry.Over && !p.midstream() }

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
		kept, ok := knowledge.Keeps(at, frontend.Endpoints, flow.Client.Addr())
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
