// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
)

func zoneSlot(zone forwarding.Zone) forwarding.NodeTableSlot { return forwarding.NodeTableSlot(zone) }

func rowsOf(row forwarding.Row) *forwarding.NodeTable {
	table := *forwarding.NewNodeTable()
	for i := range table {
		table[i] = row
	}
	return &table
}

func (n *network) planNodes(self *node, state *forwarding.State) {
	m := &model.Model{Self: forwarding.Self{ID: self.id, IPv4: self.addr.IPv4, IPv6: self.addr.IPv6, Zone: self.addr.Zone}}
	for _, node := range n.nodes {
		m.Nodes = append(m.Nodes, model.Node{Name: node.name, ID: node.id, Node: node.addr})
	}
	empty := forwarding.NewState()
	planned, _ := plan.NewPlanner(empty).Plan(empty, m, forwarding.Limits{})
	state.Self, state.Nodes = planned.Self, planned.Nodes
}

// newZones is newLargeNetwork in two zones: nodes with odd ids are in zone 1, served by node 1, the others in
// zone 3, served by node 2.
func newZones(t *testing.T) *network {
	t.Helper()
	n := newUnstartedNetwork(t, 4)
	for _, node := range n.nodes {
		node.addr.Zone = 3 - 2*forwarding.Zone(node.id%2)
	}
	for _, node := range n.nodes {
		state := n.state(node)
		n.planNodes(node, state)
		state.NodeTables = map[forwarding.NodeTableSlot]*forwarding.NodeTable{
			zoneSlot(1): rowsOf(forwarding.Row{Primary: 1}), zoneSlot(3): rowsOf(forwarding.Row{Primary: 2}),
		}
		for key, frontend := range state.Frontends {
			if frontend.Table != 0 {
				frontend.Table = zoneSlot(node.addr.Zone)
				frontend.Zones[1], frontend.Zones[3] = zoneSlot(1), zoneSlot(3)
				state.Frontends[key] = frontend
			}
		}
		n.start(t, node, state)
	}
	n.routeVIP(t, n.nodes[2])
	return n
}

func (n *network) putZone(t *testing.T, zone forwarding.Zone, row forwarding.Row) {
	t.Helper()
	for _, node := range n.nodes {
		rows := rowsOf(row)
		op := forwarding.PutRows{Slot: zoneSlot(zone), Rows: *rows}
		for i := range *rows {
			op.Changed = append(op.Changed, uint32(i))
		}
		apply(t, node.dataplane, op)
	}
}

func checkPods(t *testing.T, sessions []*session, pods ...string) {
	t.Helper()
	for _, s := range sessions {
		if !strings.Contains(strings.Join(pods, " "), s.pod) {
			t.Errorf("a connection reached %s, want one of %v", s.pod, pods)
		}
	}
}

// Connections of one zone continue on a node of the other zone, which adds overrides for them. New ones
// stay in the zone.
func TestConnectionsSurviveZoneRemoval(t *testing.T) {
	n := newZones(t)
	east := n.openSessions(t, 20)
	checkPods(t, east, "pod1")
	if asked := n.events(t, "lookup_other_zone"); asked != 0 {
		t.Errorf("%d packets were forwarded to the other zone without changes", asked)
	}
	// To a node without pods, to the other zone's primary, to the owner.
	for _, to := range []int{3, 1, 0} {
		n.routeVIP(t, n.nodes[to])
		exchangeAll(t, east)
		asked := n.events(t, "lookup_other_zone")
		exchangeAll(t, east)
		if again := n.events(t, "lookup_other_zone"); again != asked {
			t.Errorf("through node%d: the other zone was queried %d more times, want overrides used", to+1, again-asked)
		}
	}
	if learned := n.events(t, "override_added"); learned < 40 || learned > 80 {
		t.Errorf("two nodes of the other zone added %d overrides for 20 connections", learned)
	}
	n.routeVIP(t, n.nodes[5])
	west := n.openSessions(t, 20)
	checkPods(t, west, "pod2", "pod3")
	n.routeVIP(t, n.nodes[4])
	exchangeAll(t, append(west, east...))
	n.checkNothingDropped(t)
}

// A connection of a moved row in its zone is found at the former owner.
func TestZonesHaveHistories(t *testing.T) {
	for name, history := range map[string]uint8{"history": 1, "ranks": 0} {
		t.Run(name, func(t *testing.T) {
			n := newZones(t)
			sessions := n.openSessions(t, 20)
			moved := forwarding.Row{Primary: 5, Chain: [forwarding.ChainLength]forwarding.NodeID{3, 1}, History: history}
			n.putZone(t, 1, moved)
			n.routeVIP(t, n.nodes[3])
			exchangeAll(t, sessions)
			n.checkNothingDropped(t)
		})
	}
}

// If no zone knows a flow, the zone of the ingress node selects the endpoint: a flow whose node lost all
// entries is assigned the same pod again.
func TestLostStateInZones(t *testing.T) {
	n := newZones(t)
	sessions := n.openSessions(t, 20)
	for _, node := range n.nodes {
		forgetFlows(t, node.dataplane)
		forgetFlowDigests(t, node.dataplane)
	}
	exchangeAll(t, sessions)
	if asked := n.events(t, "lookup_other_zone"); asked < 20 {
		t.Errorf("the other zone was queried %d times for 20 connections", asked)
	}
	returned, asked := n.events(t, "lookup_returned"), n.events(t, "lookup_other_zone")
	if returned != asked {
		t.Errorf("%d packets were returned, but %d were looked up in the other zone", returned, asked)
	}
	n.checkNothingDropped(t)
}

// A UDP flow keeps its pod while the move of its row is recent.
func TestDatagramsInZones(t *testing.T) {
	n := newZones(t)
	conn := dialUDP(t, netip.AddrPortFrom(vip4, clusterPort))
	defer conn.Close()
	ask := func(want string) {
		t.Helper()
		if pod, err := askAgain(conn, 100); err != nil || !strings.Contains(want, pod) {
			t.Errorf("packet reached %s, error %v; want %s", pod, err, want)
		}
	}
	ask("pod1")
	ask("pod1")
	n.putZone(t, 3, forwarding.Row{Primary: 4, Chain: [forwarding.ChainLength]forwarding.NodeID{2}, History: 1})
	n.routeVIP(t, n.nodes[5])
	ask("pod1")
	n.checkNothingDropped(t)
}
