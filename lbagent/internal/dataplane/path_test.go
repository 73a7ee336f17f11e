// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/attach"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// The whole path with real TCP and UDP: client, router with ECMP, two nodes, pods.
func TestPath(t *testing.T) { inBothWays(t, testPath) }

func testPath(t *testing.T, clsact bool) {
	n := startNetwork(t, clsact)
	for _, vip := range []netip.Addr{vip4, vip6} {
		for policy, port := range map[string]uint16{"Cluster": clusterPort, "Local": localPort} {
			to := netip.AddrPortFrom(vip, port)
			t.Run(fmt.Sprintf("%s/%s", policy, vip), func(t *testing.T) {
				checkTCP(t, to)
				checkUDP(t, to)
			})
		}
	}
	for _, node := range n.nodes {
		checkNoDrops(t, node)
		attachments := node.dataplane.Attachments()
		if len(attachments) != 1 || attachments[0].Mode != attach.Native || attachments[0].Err != nil {
			t.Errorf("attachments of %s: %+v", node.name, attachments)
		}
	}
	checkCensus(t, n)
	checkSilence(t, netip.AddrPortFrom(vip4, 9), 200*time.Millisecond)
	await(t, "a SYN to an unused port is counted as no_frontend", func() bool { return n.drops(t, "no_frontend") > 0 })
	checkSample(t, n)
}

// checkSample finds the SYN to the unused port among the nodes' samples.
func checkSample(t *testing.T, n *network) {
	t.Helper()
	found := make(chan Drop, 1)
	for _, node := range n.nodes {
		reader, err := node.dataplane.OpenDrops()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := reader.Close(); err != nil {
				t.Error(err)
			}
		})
		go func() {
			for drop, err := reader.Next(); err == nil; drop, err = reader.Next() {
				if drop.Destination == netip.AddrPortFrom(vip4, 9) {
					select {
					case found <- drop:
					default:
					}
				}
			}
		}()
	}
	select {
	case drop := <-found:
		age := time.Since(drop.Time)
		if drop.Reason != "no_frontend" || drop.Protocol != 6 || drop.Frontend != 0 || age < 0 || age > time.Minute {
			t.Errorf("sample %+v, %s ago", drop, age)
		}
	case <-time.After(patience):
		t.Error("no sample of a SYN to an unused port within the timeout")
	}
}

func checkTCP(t *testing.T, to netip.AddrPort) {
	served := map[string]int{}
	for i := range 60 {
		s := connect(t, to)
		served[s.pod]++
		size := 10_000
		if i < 3 {
			size = 5_000_000
		}
		if err := s.exchange(size, size); err != nil {
			t.Fatalf("connection %d to %s: %v", i, s.pod, err)
		}
		s.Close()
	}
	checkShares(t, served)
}

func checkUDP(t *testing.T, to netip.AddrPort) {
	served := map[string]int{}
	for range 60 {
		served[askUDP(t, to, 1000)]++
	}
	checkShares(t, served)
}

// checkShares checks that every pod serves: of 60 flows, a pod without any has a probability below 1e-7 even
// with policy Local.
func checkShares(t *testing.T, served map[string]int) {
	t.Helper()
	for _, pod := range testPods {
		if served[pod.name] == 0 {
			t.Errorf("%s served no connection: %v", pod.name, served)
		}
	}
}

func checkCensus(t *testing.T, n *network) {
	t.Helper()
	s := connect(t, netip.AddrPortFrom(vip6, clusterPort))
	if err := s.exchange(1, 1); err != nil {
		t.Fatal(err)
	}
	await(t, "only one TCP connection is open", func() bool {
		var tcp uint64
		for _, node := range n.nodes {
			got, err := node.dataplane.Connections()
			if err != nil {
				t.Fatal(err)
			}
			tcp += got.TCP
		}
		return tcp == 1
	})
}

// Connections survive a move of their row together with an ECMP change: the new primary looks them up along
// the chain. They also survive the loss of all flows if no row moves: the packet is returned from the chain
// as unknown, and the hash selects the previous endpoint.
func TestLookupForwarded(t *testing.T) {
	n := startNetwork(t, false)
	sessions := n.openSessionsOnAll(t, 20)
	n.replaceRows(t, func(row forwarding.Row) forwarding.Row {
		return forwarding.Row{Primary: 3 - row.Primary, Chain: [3]forwarding.NodeID{row.Primary}, History: 1}
	})
	n.routeVIP(t, n.nodes[0])
	exchangeAll(t, sessions)
	n.checkEvent(t, "lookup_forwarded")
	n.replaceRows(t, func(row forwarding.Row) forwarding.Row {
		return forwarding.Row{Primary: row.Primary, Chain: [3]forwarding.NodeID{3 - row.Primary}, History: 1}
	})
	for _, node := range n.nodes {
		forgetFlows(t, node.dataplane)
		forgetFlowDigests(t, node.dataplane)
	}
	exchangeAll(t, sessions)
	n.checkEvent(t, "lookup_returned")
}

// A connection of a moved row survives spoofed SYNs: the new primary selects another pod, whose SYN-ACK the
// client answers with an ACK.
func TestSpoofedSYNEndsNoConnection(t *testing.T) {
	n := startNetwork(t, false)
	sessions := n.openSessionsOnAll(t, 20)
	n.replaceRows(t, func(row forwarding.Row) forwarding.Row {
		return forwarding.Row{Primary: 3 - row.Primary, Chain: [3]forwarding.NodeID{row.Primary}, History: 1}
	})
	for _, s := range sessions {
		spoofSYN(t, s)
	}
	exchangeAll(t, sessions)
	n.checkEvent(t, "lookup_forwarded")
}

func spoofSYN(t *testing.T, s *session) {
	t.Helper()
	from, to := netip.MustParseAddrPort(s.LocalAddr().String()), netip.MustParseAddrPort(s.RemoteAddr().String())
	packet := tcpPacket(t, from, to, false)
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: to.Addr().As16()})
	if to.Addr().Unmap().Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Addr: to.Addr().Unmap().As4()}
	}
	inNamespace(t, "client", func() error {
		socket, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		return unix.Sendto(socket, packet, 0, address)
	})
}

// Nodes with ids of more than 12 bits serve packets of the full MTU, with tags, and moved rows.
func TestLongNodeIDs(t *testing.T) {
	n := newUnstartedNetwork(t, 0)
	n.nodes[0].id, n.nodes[1].id = 4097, forwarding.MaxNodeID
	for _, node := range n.nodes {
		n.start(t, node, n.state(node))
		setTunnelKeys(t, node.dataplane, tunnelKeys(true, 1, 1))
	}
	for _, vip := range []netip.Addr{vip4, vip6} {
		checkTCP(t, netip.AddrPortFrom(vip, clusterPort))
		checkUDP(t, netip.AddrPortFrom(vip, clusterPort))
	}
	sessions := n.openSessionsOnAll(t, 20)
	n.replaceRows(t, func(row forwarding.Row) forwarding.Row {
		other := n.nodes[0].id + n.nodes[1].id - row.Primary
		return forwarding.Row{Primary: other, Chain: [3]forwarding.NodeID{row.Primary}, History: 1}
	})
	n.routeVIP(t, n.nodes[0])
	exchangeAll(t, sessions)
	n.checkEvent(t, "lookup_forwarded")
	if n.events(t, "override_added") == 0 {
		t.Error("the ingress node added no override")
	}
}

// An ingress node knows the first pod of a node before that node does. Flows sent there meanwhile are
// forwarded to the previous owner and stay there.
func TestFirstPodIsLearnedLate(t *testing.T) {
	n := newNetwork(t)
	for _, pod := range testPods {
		serve(t, pod)
	}
	first, second := n.nodes[0], n.nodes[1]
	rows := func(state *forwarding.State, row forwarding.Row) *forwarding.State {
		for i := range *state.NodeTables[1] {
			(*state.NodeTables[1])[i] = row
		}
		return state
	}
	moved := forwarding.Row{Primary: second.id, Chain: [3]forwarding.NodeID{first.id}, History: 1}
	n.start(t, first, rows(n.state(first), moved))
	unaware := *second
	unaware.pods = nil
	n.start(t, second, rows(n.state(&unaware), forwarding.Row{Primary: first.id}))
	n.routeVIP(t, first)

	var sessions []*session
	for _, vip := range []netip.Addr{vip4, vip6} {
		to := netip.AddrPortFrom(vip, clusterPort)
		for range 10 {
			sessions = append(sessions, connect(t, to))
			askUDP(t, to, 1000)
		}
	}
	exchangeAll(t, sessions)
	have, err := second.dataplane.Dump()
	if err != nil {
		t.Fatal(err)
	}
	apply(t, second.dataplane, forwarding.Diff(have, rows(n.state(second), moved))...)
	exchangeAll(t, sessions)
	for _, s := range sessions {
		if s.pod != first.pods[0].name {
			t.Errorf("a connection is served by %s, want the pod of the previous owner", s.pod)
		}
	}
	if s := connect(t, netip.AddrPortFrom(vip4, clusterPort)); s.pod == first.pods[0].name {
		t.Error("a new connection reached the previous owner although the node has its own pods in the table")
	}
	for _, node := range n.nodes {
		checkNoDrops(t, node)
	}
	if counters(t, second).Events["lookup_forwarded"] == 0 {
		t.Error("no packet was forwarded to the previous owner")
	}
}

func (n *network) replaceRows(t *testing.T, change func(forwarding.Row) forwarding.Row) {
	t.Helper()
	for _, node := range n.nodes {
		want := *n.state(node)
		want.NodeTables = map[forwarding.NodeTableSlot]*forwarding.NodeTable{1: forwarding.NewNodeTable()}
		for i, row := range *n.state(node).NodeTables[1] {
			(*want.NodeTables[1])[i] = change(row)
		}
		have, err := node.dataplane.Dump()
		if err != nil {
			t.Fatal(err)
		}
		apply(t, node.dataplane, forwarding.Diff(have, &want)...)
	}
}

// checkEvent checks that every node counted the event, without drops.
func (n *network) checkEvent(t *testing.T, event string) {
	t.Helper()
	for _, node := range n.nodes {
		checkNoDrops(t, node)
		if counters(t, node).Events[event] == 0 {
			t.Errorf("%s: counter %s is 0", node.name, event)
		}
	}
}

func exchangeAll(t *testing.T, sessions []*session) {
	t.Helper()
	for i, s := range sessions {
		if err := s.exchange(100_000, 100_000); err != nil {
			t.Errorf("connection %d, served by %s: %v", i, s.pod, err)
		}
	}
}

// Frames returned by XDP_TX, as on real NICs. On veth this requires XDP programs at the other ends.
func TestTransmit(t *testing.T) {
	n := newNetwork(t)
	n.vethTransmit = true
	for _, pod := range testPods {
		serve(t, pod)
	}
	for _, node := range n.nodes {
		n.start(t, node, n.state(node))
		inNamespace(t, "router", func() error {
			port, err := net.InterfaceByName(node.name)
			if err != nil {
				return err
			}
			l, err := link.AttachXDP(link.XDPOptions{Program: passProgram(t), Interface: port.Index, Flags: link.XDPDriverMode})
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		})
	}
	for _, vip := range []netip.Addr{vip4, vip6} {
		checkTCP(t, netip.AddrPortFrom(vip, clusterPort))
		checkUDP(t, netip.AddrPortFrom(vip, clusterPort))
	}
	for _, node := range n.nodes {
		checkNoDrops(t, node)
		// The first frames may wait for neighbour resolution.
		if handed := counters(t, node).Events["passed_to_kernel"]; handed > 20 {
			t.Errorf("%s passed %d packets to the kernel, want at most 20", node.name, handed)
		}
	}
}
