// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func (n *node) change(t *testing.T, change func(*forwarding.State)) {
	t.Helper()
	have, err := n.dataplane.Dump()
	if err != nil {
		t.Fatal(err)
	}
	want := have.Clone()
	change(want)
	apply(t, n.dataplane, forwarding.Diff(have, want)...)
}

func changeFrontends(s *forwarding.State, port uint16, change func(forwarding.FrontendKey, *forwarding.Frontend)) {
	for key, frontend := range maps.Clone(s.Frontends) {
		if key.Port == port {
			change(key, &frontend)
			s.Frontends[key] = frontend
		}
	}
}

// A Local Service with pods on node 2, on VIPs that the router sends to node 1, too, because of another
// Service; then node 1 gets a pod.
func TestSharedLocalPath(t *testing.T) {
	n := newNetwork(t)
	for _, pod := range testPods {
		serve(t, pod)
	}
	const slot = 2
	for _, node := range n.nodes {
		state := n.state(node)
		state.NodeTables[slot] = tableOf(func(int) forwarding.Row { return forwarding.Row{Primary: 2} })
		changeFrontends(state, localPort, func(_ forwarding.FrontendKey, f *forwarding.Frontend) {
			f.Table = slot
			if node.id == 1 {
				f.Endpoints = 0
			}
		})
		n.start(t, node, state)
	}
	n.routeVIP(t, n.nodes[0])
	var sessions []*session
	for range 5 {
		for _, vip := range []netip.Addr{vip4, vip6} {
			to := netip.AddrPortFrom(vip, localPort)
			sessions = append(sessions, connect(t, to))
			if pod := askUDP(t, to, 1000); pod == "pod1" {
				t.Error("UDP is answered by the pod on node 1, which is not an endpoint of the Service")
			}
		}
	}
	for _, s := range sessions {
		if s.pod == "pod1" {
			t.Error("TCP is served by the pod on node 1, which is not an endpoint of the Service")
		}
	}
	exchangeAll(t, sessions)

	for _, node := range n.nodes {
		node.change(t, func(s *forwarding.State) {
			s.NodeTables[slot] = tableOf(func(row int) forwarding.Row {
				if row%3 == 0 {
					return forwarding.Row{Primary: 1, Chain: [forwarding.ChainLength]forwarding.NodeID{2}}
				}
				return forwarding.Row{Primary: 2}
			})
			changeFrontends(s, localPort, func(key forwarding.FrontendKey, f *forwarding.Frontend) {
				key.Port = clusterPort
				f.Endpoints = s.Frontends[key].Endpoints
			})
		})
	}
	exchangeAll(t, sessions)
	for _, vip := range []netip.Addr{vip4, vip6} {
		if s := connect(t, netip.AddrPortFrom(vip, localPort)); s.pod != "pod1" {
			t.Errorf("a new connection is served by %s, want the pod on the ingress node", s.pod)
		}
	}
	for _, node := range n.nodes {
		checkNoDrops(t, node)
	}
}

// Connections of a Local Service keep their pods across ECMP changes, moves of rows, and ingress by nodes
// without pods. The rows' primaries have no other information.
func TestLocalConnectionsSurvive(t *testing.T) {
	n := newUnstartedNetwork(t, 4)
	for _, node := range n.nodes {
		state := n.state(node)
		state.NodeTables[1] = tableOf(func(row int) forwarding.Row {
			return forwarding.Row{Primary: forwarding.NodeID(3 + row%3)}
		})
		changeFrontends(state, localPort, func(key forwarding.FrontendKey, f *forwarding.Frontend) {
			if key.Protocol == forwarding.ProtocolTCP {
				f.Table = 1
			}
		})
		n.start(t, node, state)
	}
	n.routeVIP(t, n.nodes[0], n.nodes[1])
	var sessions []*session
	served := map[string]bool{}
	for len(sessions) < 12 || len(served) < len(testPods) && len(sessions) < 200 {
		for _, vip := range []netip.Addr{vip4, vip6} {
			s := connect(t, netip.AddrPortFrom(vip, localPort))
			sessions, served[s.pod] = append(sessions, s), true
		}
	}
	exchangeAll(t, sessions)
	for _, step := range []func(){
		func() { n.routeVIP(t, n.nodes[0]) },
		func() { n.routeVIP(t, n.nodes[1]) },
		func() { n.moveRows(t, 6); n.routeVIP(t, n.nodes[0]) },
		func() { n.routeVIP(t, n.nodes[2]) },
	} {
		step()
		exchangeAll(t, sessions)
	}
	n.checkNothingDropped(t)
}

func tableOf(row func(int) forwarding.Row) *forwarding.NodeTable {
	table := *forwarding.NewNodeTable()
	for i := range table {
		table[i] = row(i)
	}
	return &table
}

// Clients outside the source ranges are rejected on every node; their connections stop on a change and
// continue when they are admitted again.
func TestSourceRangesPath(t *testing.T) {
	n := newNetwork(t)
	for _, pod := range testPods {
		serve(t, pod)
	}
	limit := func(set forwarding.SourceSet, prefixes ...string) {
		for _, node := range n.nodes {
			node.change(t, func(s *forwarding.State) {
				clear(s.SourceRanges)
				for _, prefix := range prefixes {
					s.SourceRanges[forwarding.SourceRange{Set: set, Prefix: netip.MustParsePrefix(prefix)}] = struct{}{}
				}
				changeFrontends(s, clusterPort, func(_ forwarding.FrontendKey, f *forwarding.Frontend) { f.Ranges = set })
			})
		}
	}
	for _, node := range n.nodes {
		n.start(t, node, n.state(node))
	}
	limit(1, "198.51.100.128/25", "2001:db8:0:2::/64")
	sessions := n.openSessions(t, 6)

	limit(2, "198.51.100.0/25", "2001:db8:0:1::/64")
	for _, vip := range []netip.Addr{vip4, vip6} {
		checkSilence(t, netip.AddrPortFrom(vip, clusterPort), 200*time.Millisecond)
	}
	await(t, "packets are counted as source_range", func() bool { return n.drops(t, "source_range") > 0 })
	// Another port of the VIP is another Service's.
	connect(t, netip.AddrPortFrom(vip4, localPort))

	limit(forwarding.NoSources)
	checkSilence(t, netip.AddrPortFrom(vip4, clusterPort), 200*time.Millisecond)
	limit(3, "198.51.100.130/32", "2001:db8::/32")
	exchangeAll(t, sessions)
	limit(0)
	exchangeAll(t, sessions)
}
