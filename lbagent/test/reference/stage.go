// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// stage1 returns the possible targets of a packet from a router. With an override, that is the owner of the
// flow. If the owner's flow is over or lost, the override is ignored.
func (c Cluster) stage1(at forwarding.NodeID, p packet, frontend forwarding.Frontend, knowledge Knowledge) []Target {
	hash, _ := p.hash(frontend)
	rows := c.rowsOf(at, frontend, hash, knowledge)
	byRow := func() []Target {
		return c.byRow(at, hash, p, frontend, knowledge)
	}
	owner, learned := knowledge.Learned(at, p.Flow)
	if learned == No || owner == rows[0].Primary || c[owner].State == nil {
		return byRow()
	}
	entry, ok := knowledge.Knows(owner, p.Flow)
	if !ok || p.replaces(entry) || p.queriesFirst(entry) {
		return byRow()
	}
	held := Target{Node: owner, Endpoint: entry.Endpoint}
	if learned == Maybe || entry.Yields {
		return append(byRow(), held)
	}
	return []Target{held}
}

type queriedRow struct {
	forwarding.Row
	queried bool
}

// rowsOf returns the rows of a hash in a node's tables: its own zone's, then those of the other zones, in query
// order. A chain is queried if it has a history or if a row of the group has moved.
func (c Cluster) rowsOf(at forwarding.NodeID, frontend forwarding.Frontend, hash uint32, knowledge Knowledge) []queriedRow {
	state := c[at].State
	slots := []forwarding.NodeTableSlot{frontend.Table}
	for on := range forwarding.Zones {
		slot := frontend.Zones[(int(state.Self.Zone)+on)%forwarding.Zones]
		if slot != 0 && on > 0 {
			slots = append(slots, slot)
		}
	}
	rows := make([]queriedRow, len(slots))
	for i, slot := range slots {
		number := slot.Row(hash)
		row := (*state.NodeTables[slot])[number]
		rows[i] = queriedRow{Row: row, queried: row.History > 0 || knowledge.IsYoung(at, slot, number)}
	}
	return rows
}

// byRow returns the possible targets of a packet by its rows. The primary of the first row serves flows that it
// has and flows unknown to all nodes. Midstream packets query the other nodes first, in order, and so do
// datagrams if their row moved recently. The limit of unknown packets is not modelled.
func (c Cluster) byRow(
	at forwarding.NodeID, hash uint32, p packet, frontend forwarding.Frontend, knowledge Knowledge,
) []Target {
	rows := c.rowsOf(at, frontend, hash, knowledge)
	queried := Yes
	switch {
	case p.Protocol == UDP:
		queried = knowledge.Moved(frontend.Table, frontend.Table.Row(hash))
	case !p.midstream():
		queried = No
	}
	primary := rows[0].Primary
	var targets []Target
	entry, known := knowledge.Knows(primary, p.Flow)
	unvalidated := known && p.queriesFirst(entry)
	if known && !unvalidated {
		if !p.replaces(entry) {
			targets = append(targets, Target{Node: primary, Endpoint: entry.Endpoint})
		}
		if !entry.Yields && len(targets) > 0 {
			return targets
		}
	}
	if queried != Yes {
		targets = append(targets, c.choose(primary, p, knowledge))
	}
	if queried == No {
		return targets
	}
	others, found := c.query(at, path(rows), p, frontend, knowledge)
	if targets = append(targets, others...); found {
		return targets
	}
	if unvalidated {
		return append(targets, Target{Node: primary, Endpoint: entry.Endpoint})
	}
	return append(targets, c.choose(primary, p, knowledge))
}

// queriesFirst reports whether the packet queries other nodes although the node has an entry.
func (p packet) queriesFirst(entry Entry) bool {
	return entry.Unvalidated && p.midstream() && p.acknowledged-entry.Offer >= entry.OfferWindow
}

// path returns the queried nodes in order: the primary of each row and, if queried, its chain.
func path(rows []queriedRow) []forwarding.NodeID {
	var nodes []forwarding.NodeID
	for _, row := range rows {
		nodes = append(nodes, row.Primary)
		if row.queried {
			nodes = append(nodes, row.Chain[:]...)
		}
	}
	return slices.DeleteFunc(nodes, func(id forwarding.NodeID) bool { return id == 0 })
}

// replaces reports whether the packet starts a new flow after a finished one.
func (p packet) replaces(entry Entry) bool { return entry.Over && !p.midstream() }

// local returns the possible targets of a packet of a Local frontend. Nodes with endpoints serve their own and
// new flows. With a table they query others for midstream packets of unknown flows, after their own overrides.
// Nodes without endpoints use the table.
func (c Cluster) local(at forwarding.NodeID, p packet, frontend forwarding.Frontend, knowledge Knowledge) []Target {
	if frontend.Table == 0 || p.Protocol == UDP {
		return c.serve(at, p, knowledge)
	}
	entry, known := knowledge.Knows(at, p.Flow)
	if frontend.Endpoints == 0 && !known {
		return c.stage1(at, p, frontend, knowledge)
	}
	var targets []Target
	unvalidated := known && p.queriesFirst(entry)
	if known && !p.replaces(entry) && !unvalidated {
		targets = []Target{{Node: at, Endpoint: entry.Endpoint}}
		if !entry.Yields {
			return targets
		}
	}
	others, found := c.localOwner(at, p, frontend, knowledge)
	if targets = append(targets, others...); found {
		return targets
	}
	if unvalidated {
		return append(targets, Target{Node: at, Endpoint: entry.Endpoint})
	}
	return append(targets, c.choose(at, p, knowledge))
}

// localOwner returns the possible targets of a Local frontend's packet on other nodes: the owner in the node's
// override, else the nodes that are queried. found is false unless another node serves the packet. A node without
// endpoints forwards the packet by the row after the owner has rejected it.
func (c Cluster) localOwner(
	at forwarding.NodeID, p packet, frontend forwarding.Frontend, knowledge Knowledge,
) (targets []Target, found bool) {
	if targets, found = c.ownerBy(at, at, p, knowledge); found {
		return targets, true
	}
	hash, _ := p.hash(frontend)
	if owner, told := knowledge.Learned(at, p.Flow); told != No && owner != at && frontend.Endpoints == 0 {
		return append(targets, c.byRow(at, hash, p, frontend, knowledge)...), true
	}
	if !p.midstream() {
		return targets, false
	}
	rows := c.rowsOf(at, frontend, hash, knowledge)
	queried := slices.DeleteFunc(path(rows), func(id forwarding.NodeID) bool { return id == at })
	// The primary takes a place of the chain.
	others, found := c.query(at, queried[:min(len(queried), forwarding.ChainLength)], p, frontend, knowledge)
	return append(targets, others...), found
}

// ownerBy returns the target of a Local frontend's packet by a node's override. found is false if there is no
// override or it may be wrong.
func (c Cluster) ownerBy(node, at forwarding.NodeID, p packet, knowledge Knowledge) (held []Target, found bool) {
	owner, learned := knowledge.Learned(node, p.Flow)
	if learned == No || owner == node || owner == at || c[owner].State == nil {
		return nil, false
	}
	entry, known := knowledge.Knows(owner, p.Flow)
	if !known || p.replaces(entry) || p.queriesFirst(entry) {
		return nil, false
	}
	return []Target{{Node: owner, Endpoint: entry.Endpoint}}, !entry.Yields
}

// query returns the possible targets of a packet among the queried nodes. found is false unless a node
// certainly has the flow. The first node with an override for the flow of a Local frontend forwards to the
// owner, even if the override is wrong.
func (c Cluster) query(
	at forwarding.NodeID, queried []forwarding.NodeID, p packet, frontend forwarding.Frontend, knowledge Knowledge,
) (targets []Target, found bool) {
	led := !frontend.Local
	for _, id := range queried {
		if c[id].State == nil {
			continue
		}
		if entry, known := knowledge.Knows(id, p.Flow); known && !p.queriesFirst(entry) {
			targets = append(targets, Target{Node: id, Endpoint: entry.Endpoint})
			if !entry.Yields {
				return targets, true
			}
		}
		if led || id == at {
			continue
		}
		held, right := c.ownerBy(id, at, p, knowledge)
		if targets = append(targets, held...); right {
			return targets, true
		}
		_, learned := knowledge.Learned(id, p.Flow)
		led = learned != No
	}
	return targets, false
}

// serve is stage 2: it returns the flow's existing or new endpoint on the node.
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

// nextRows bounds the search of a midstream packet for a row that does not refuse; the test's tables have
// shorter runs.
const nextRows = 64

// choose returns the endpoint of a new flow on the node, if the frontend has any. With session affinity it is
// the endpoint of the client's last flows if it takes new ones. Rows may refuse new flows, but midstream
// packets use the next row that does not.
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
