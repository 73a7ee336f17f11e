// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

// newLargeNetwork is newNetwork with four more nodes, without pods.
func newLargeNetwork(t *testing.T) *network { return newWiderNetwork(t, 4) }

func newWiderNetwork(t *testing.T, more int) *network {
	t.Helper()
	n := newUnstartedNetwork(t, more)
	for _, node := range n.nodes {
		n.start(t, node, n.state(node))
	}
	return n
}

func newUnstartedNetwork(t *testing.T, more int) *network {
	t.Helper()
	nodes := newTestNodes()
	for id := 3; id < 3+more; id++ {
		nodes = append(nodes, &node{
			name: fmt.Sprintf("node%d", id), id: forwarding.NodeID(id),
			addr: forwarding.Node{IPv4: ip(fmt.Sprintf("198.51.100.%d", 10+id)), IPv6: ip(fmt.Sprintf("2001:db8:0:1::%d", 10+id))},
		})
	}
	n := newNetworkOf(t, nodes, wireDirectly)
	for _, pod := range testPods {
		serve(t, pod)
	}
	return n
}

func (n *network) rows(t *testing.T) *forwarding.NodeTable {
	t.Helper()
	state, err := n.nodes[0].dataplane.Dump()
	if err != nil {
		t.Fatal(err)
	}
	return state.NodeTables[1]
}

func (n *network) moveRows(t *testing.T, to forwarding.NodeID) {
	t.Helper()
	n.moveSomeRows(t, to, func(int) bool { return true })
}

func (n *network) moveSomeRows(t *testing.T, to forwarding.NodeID, named func(row int) bool) {
	t.Helper()
	rows := *n.rows(t)
	for i, row := range rows {
		if !named(i) {
			continue
		}
		rows[i] = moved(row, to)
	}
	for _, node := range n.nodes {
		node.putRows(t, &rows)
	}
}

func moved(row forwarding.Row, to forwarding.NodeID) forwarding.Row {
	next := forwarding.Row{Primary: to}
	for _, previous := range append([]forwarding.NodeID{row.Primary}, row.Chain[:]...) {
		if length := next.History; previous != 0 && previous != to && length < forwarding.ChainLength &&
			!slices.Contains(next.Chain[:], previous) {
			next.Chain[length] = previous
			next.History++
		}
	}
	return next
}

func (node *node) putRows(t *testing.T, rows *forwarding.NodeTable) {
	t.Helper()
	op := forwarding.PutRows{Slot: 1, Rows: *rows}
	for i := range *rows {
		op.Changed = append(op.Changed, uint32(i))
	}
	apply(t, node.dataplane, op)
}

func (n *network) events(t *testing.T, name string) (total uint64) {
	t.Helper()
	for _, node := range n.nodes {
		total += counters(t, node).Events[name]
	}
	return total
}

func (n *network) drops(t *testing.T, reason string) (total uint64) {
	t.Helper()
	for _, node := range n.nodes {
		total += counters(t, node).Drops[reason]
	}
	return total
}

func (n *network) checkNothingDropped(t *testing.T) {
	t.Helper()
	for _, node := range n.nodes {
		checkNoDrops(t, node)
	}
}

func (n *network) sweep(t *testing.T) {
	t.Helper()
	for _, node := range n.nodes {
		if err := node.dataplane.SweepOverrides(); err != nil {
			t.Fatal(err)
		}
	}
}

// Connections survive more moves of their row than its chain's length: the node that receives their packets
// learns their location. The overrides end when the row returns.
func TestConnectionsSurviveChainChange(t *testing.T) {
	n := newLargeNetwork(t)
	sessions := n.openSessions(t, 20)
	for _, to := range []forwarding.NodeID{3, 4, 5, 6, 3, 4} {
		n.moveRows(t, to)
		exchangeAll(t, sessions)
		n.sweep(t)
	}
	if learned := n.events(t, "override_added"); learned < 20 || learned > 80 {
		t.Errorf("%d overrides were added for 20 connections", learned)
	}
	asked := n.events(t, "lookup_forwarded")
	exchangeAll(t, sessions)
	if again := n.events(t, "lookup_forwarded"); again != asked {
		t.Errorf("previous owners were queried %d more times, want overrides used", again-asked)
	}
	if n.events(t, "override_used") == 0 {
		t.Error("no override was used")
	}
	n.checkNothingDropped(t)
}

// moveTable moves all rows to a node, in a table of another slot and size.
func (n *network) moveTable(t *testing.T, from, slot forwarding.NodeTableSlot, to forwarding.NodeID) {
	t.Helper()
	state, err := n.nodes[0].dataplane.Dump()
	if err != nil {
		t.Fatal(err)
	}
	rows := *table.Resize(state.NodeTables[from], slot.Rows()).Clone()
	for i, row := range rows {
		rows[i] = moved(row, to)
	}
	for _, node := range n.nodes {
		state, err := node.dataplane.Dump()
		if err != nil {
			t.Fatal(err)
		}
		want := forwarding.Apply(state, nil)
		delete(want.NodeTables, from)
		want.NodeTables[slot] = &rows
		for key, frontend := range want.Frontends {
			if frontend.Table == from {
				frontend.Table = slot
				want.Frontends[key] = frontend
			}
		}
		apply(t, node.dataplane, forwarding.Diff(state, want)...)
	}
}

// Idle connections also survive moves of the table. They are found by overrides only, without another
// lookup.
func TestConnectionsSurviveTableRemoval(t *testing.T) {
	n := newLargeNetwork(t)
	sessions := n.openSessions(t, 20)
	slot, asked := forwarding.NodeTableSlot(1), uint64(0)
	at := forwarding.NodeTableSlotAt
	for i, next := range []forwarding.NodeTableSlot{
		at(2*forwarding.Rows, 512), at(4*forwarding.Rows, 2*forwarding.Rows), at(2*forwarding.Rows+512, 512), 3,
		at(2*forwarding.Rows, 128), at(4*forwarding.Rows, 2*forwarding.Rows), 1,
	} {
		n.moveTable(t, slot, next, []forwarding.NodeID{3, 4, 5, 6}[i%4])
		slot = next
		n.sweep(t)
		n.sweep(t)
		exchangeAll(t, sessions)
		n.sweep(t)
		if i == 0 {
			asked = n.events(t, "lookup_forwarded")
		}
	}
	if again := n.events(t, "lookup_forwarded"); again != asked {
		t.Errorf("previous owners were queried %d more times, want overrides used", again-asked)
	}
	n.checkOverridesIn(t, slot)
	n.checkNothingDropped(t)
}

// After a move of the table, overrides for the primary of their row are found, although no previous row had
// the flag.
func TestOverridesOfThePrimaryOutliveTheirTable(t *testing.T) {
	n := newWiderNetwork(t, 1)
	before := *n.rows(t)
	sessions := n.openSessions(t, 20)
	n.moveRows(t, 3)
	exchangeAll(t, sessions)
	for _, node := range n.nodes {
		node.putRows(t, &before)
		// The clock of the row groups is coarse: an entry of the tick of a sweep remains until the next.
		await(t, "rows of "+node.name+" without the bit", func() bool {
			if err := node.dataplane.SweepOverrides(); err != nil {
				t.Fatal(err)
			}
			return node.dataplane.swept.marked == 0
		})
	}
	asked := n.events(t, "lookup_forwarded")
	n.moveTable(t, 1, forwarding.NodeTableSlotAt(2*forwarding.Rows, 512), 3)
	// New rows have the bit until the second sweep.
	n.sweep(t)
	n.sweep(t)
	exchangeAll(t, sessions)
	if again := n.events(t, "lookup_forwarded"); again != asked {
		t.Errorf("previous owners were queried %d times, want overrides used", again-asked)
	}
	n.checkNothingDropped(t)
}

// checkOverridesIn checks that used overrides refer to rows of the table.
func (n *network) checkOverridesIn(t *testing.T, slot forwarding.NodeTableSlot) {
	t.Helper()
	found := 0
	for _, node := range n.nodes {
		buckets, err := readBuckets(node.dataplane.maps.Overrides)
		if err != nil {
			t.Fatal(err)
		}
		for _, bucket := range buckets {
			for _, override := range bucket.Slot {
				if override.Fingerprint <= overrideGone {
					continue
				}
				found++
				if row := uint32(override.Value >> 36); row < slot.First() || row >= slot.First()+uint32(slot.Rows()) {
					t.Errorf("an override of %s is for row %d outside of table %s", node.name, row, slot)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no overrides remain")
	}
}

// Overrides survive a restart with a table of another size, without further lookups.
func TestOverridesAreCopied(t *testing.T) {
	n := newWiderNetwork(t, 1)
	sessions := n.openSessions(t, 20)
	n.moveRows(t, 3)
	exchangeAll(t, sessions)
	asked := n.events(t, "lookup_forwarded")
	previous := n.nodes[0].cfg.overrides()
	for _, size := range []int{4 * previous, previous / 2} {
		for _, node := range n.nodes {
			cfg := node.cfg
			cfg.Overrides = size
			n.reopen(t, node, cfg)
			if got := node.dataplane.Adoption(); got.Kind != Resized {
				t.Fatalf("%+v, want %s", got, Resized)
			}
			n.attach(t, node, node.uplink)
		}
		exchangeAll(t, sessions)
	}
	if again := n.events(t, "lookup_forwarded"); again != asked {
		t.Errorf("previous owners were queried %d more times, want overrides used", again-asked)
	}
	n.checkNothingDropped(t)
}

// The flags of a row are cleared after its last override, and sweeps stop.
func TestSweepsEnd(t *testing.T) {
	n := newWiderNetwork(t, 1)
	sessions := n.openSessions(t, 20)
	n.moveRows(t, 3)
	exchangeAll(t, sessions)
	// The router may have sent all connections to the others.
	learned := slices.IndexFunc(n.nodes, func(node *node) bool {
		return counters(t, node).Events["override_added"] > 0
	})
	if learned < 0 {
		t.Fatal("no node added an override")
	}
	node := n.nodes[learned]
	sweep := func() sweepState {
		t.Helper()
		if err := node.dataplane.SweepOverrides(); err != nil {
			t.Fatal(err)
		}
		return node.dataplane.swept
	}
	if got := sweep(); got.left == 0 || got.marked == 0 {
		t.Errorf("remaining: %+v, want overrides and marked rows", got)
	}
	forgetOverrides(t, node.dataplane)
	if got := sweep(); !got.ended || got.left != 0 || got.marked != 0 {
		t.Errorf("remaining: %+v, want none", got)
	}
}

// Without overrides, connections one move away are found along the chain.
func TestConnectionsSurviveOverrideExpiry(t *testing.T) {
	n := newWiderNetwork(t, 1)
	sessions := n.openSessions(t, 20)
	n.moveRows(t, 3)
	exchangeAll(t, sessions)
	learned := n.events(t, "override_added")
	if learned == 0 {
		t.Error("no override was added")
	}
	for _, node := range n.nodes {
		forgetOverrides(t, node.dataplane)
	}
	exchangeAll(t, sessions)
	if n.events(t, "override_added") == learned {
		t.Error("no override was added again")
	}
	n.checkNothingDropped(t)
}

// If a node loses its connections, their overrides are removed and the primary, here again the node with the
// pod, selects an endpoint.
func TestOverridesRecover(t *testing.T) {
	n := newWiderNetwork(t, 1)
	before := *n.rows(t)
	sessions := n.openSessions(t, 20)
	n.moveRows(t, 3)
	exchangeAll(t, sessions)
	for i := range before {
		before[i].Chain, before[i].History = [forwarding.ChainLength]forwarding.NodeID{3}, 1
	}
	for _, node := range n.nodes {
		node.putRows(t, &before)
		forgetFlows(t, node.dataplane)
	}
	exchangeAll(t, sessions)
	n.checkNothingDropped(t)
}

// A node without history sends packets along a chain of ranks, and learns from a node with history.
func TestHistoryReachesANodeWithoutOne(t *testing.T) {
	n := newLargeNetwork(t)
	sessions := n.openSessions(t, 20)
	n.moveRows(t, 3)
	n.moveRows(t, 4)
	guess := *n.rows(t)
	for i := range guess {
		guess[i].Chain, guess[i].History = [forwarding.ChainLength]forwarding.NodeID{5, 6}, 0
	}
	n.nodes[5].putRows(t, &guess)
	n.routeVIP(t, n.nodes[5])
	exchangeAll(t, sessions)
	n.checkNothingDropped(t)
}

func openDatagrams(t *testing.T, count int) map[net.Conn]string {
	t.Helper()
	pods := map[net.Conn]string{}
	for i := range count {
		conn := dialUDP(t, netip.AddrPortFrom([]netip.Addr{vip4, vip6}[i%2], clusterPort))
		t.Cleanup(func() { conn.Close() })
		for range 2 {
			pod, err := askAgain(conn, 100)
			if err != nil {
				t.Fatal(err)
			}
			pods[conn] = pod
		}
	}
	return pods
}

// A UDP flow of a moved row keeps its pod: on every node while the move is recent, then on the node that
// learned its location.
func TestDatagramAffinity(t *testing.T) {
	n := newLargeNetwork(t)
	pods := openDatagrams(t, 40)
	check := func(step string) {
		t.Helper()
		for conn, want := range pods {
			if pod, err := askAgain(conn, 100); err != nil || pod != want {
				t.Errorf("%s: flow of %s reached %s, error %v; want %s", step, conn.LocalAddr(), pod, err, want)
			}
		}
	}
	check("at rest")
	n.moveRows(t, 3)
	check("row moved")
	n.routeVIP(t, n.nodes[4], n.nodes[5])
	check("by other nodes")
	for _, node := range n.nodes {
		ageMoves(t, node.dataplane)
	}
	check("long after the move")
	for _, to := range []forwarding.NodeID{4, 5, 6, 3} {
		n.moveRows(t, to)
		check(fmt.Sprintf("row moved on to node %d", to))
	}
	n.checkNothingDropped(t)
}

// Idle flows of all rows of a group are found after moves, rewrites and sweeps: rows of a group share timestamps.
func TestSilentFlowsOfAGroup(t *testing.T) {
	n := newLargeNetwork(t)
	sessions, pods := n.openSessions(t, 40), openDatagrams(t, 80)
	check := func(step string) {
		t.Helper()
		exchangeAll(t, sessions)
		for conn, want := range pods {
			if pod, err := askAgain(conn, 100); err != nil || pod != want {
				t.Errorf("%s: flow of %s reached %s, error %v; want %s", step, conn.LocalAddr(), pod, err, want)
			}
		}
	}
	for round := range 4 {
		for member := range int(rowGroup) {
			n.moveSomeRows(t, forwarding.NodeID(3+(round+member)%4), func(row int) bool { return row%int(rowGroup) == member })
			n.sweep(t)
		}
		check(fmt.Sprintf("after round %d", round))
	}
	n.checkNothingDropped(t)
}

// A started node has rows without previous primaries: UDP flows through it reach the nodes that had the rows.
func TestDatagramsAtNewNode(t *testing.T) {
	n := newUnstartedNetwork(t, 4)
	newcomer := n.nodes[5]
	for _, node := range n.nodes[:5] {
		n.start(t, node, n.state(node))
	}
	n.routeVIP(t, n.nodes[0])
	pods := openDatagrams(t, 40)
	want := n.state(newcomer)
	for i := range *want.NodeTables[1] {
		(*want.NodeTables[1])[i] = forwarding.Row{Primary: newcomer.id, Chain: [forwarding.ChainLength]forwarding.NodeID{3, 1, 2}}
	}
	n.start(t, newcomer, want)
	n.routeVIP(t, newcomer)
	for conn, want := range pods {
		if pod, err := askAgain(conn, 100); err != nil || pod != want {
			t.Fatalf("flow of %s reached %s, error %v; want %s", conn.LocalAddr(), pod, err, want)
		}
	}
	checkNoDrops(t, newcomer)
}

func ageMoves(t *testing.T, d *Dataplane) {
	t.Helper()
	const groups = uint32(forwarding.Rows / bpf.DatapathShapeROW_GROUP)
	for group := range groups {
		var mark bpf.DatapathRowGroup
		index := groups + group
		if err := d.maps.RowGroups.Lookup(index, &mark); err != nil {
			t.Fatal(err)
		}
		mark.Moved = 0
		if err := d.maps.RowGroups.Update(index, mark, ebpf.UpdateExist); err != nil {
			t.Fatal(err)
		}
	}
}
