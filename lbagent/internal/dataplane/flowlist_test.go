// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Flows are listed on the node of their pod, with client and endpoint, until they end.
func TestFlows(t *testing.T) {
	n := startNetwork(t, false)
	sessions := map[netip.AddrPort]*session{}
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, port := range []uint16{clusterPort, localPort} {
			to := netip.AddrPortFrom(vip, port)
			sessions[to] = connect(t, to)
			if err := sessions[to].exchange(1, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	asked := dialUDP(t, netip.AddrPortFrom(vip4, clusterPort))
	defer asked.Close()
	for range 2 {
		if _, err := askAgain(asked, 100); err != nil {
			t.Fatal(err)
		}
	}
	for to, s := range sessions {
		flow := n.awaitFlow(t, s.LocalAddr(), forwarding.FrontendKey{VIP: to.Addr(), Port: to.Port(), Protocol: forwarding.ProtocolTCP})
		if flow.Closing {
			t.Errorf("the open connection to %s is reported as closing", to)
		}
		if pod := podAt(flow.Endpoint.Addr()); pod != s.pod {
			t.Errorf("the connection to %s is reported with endpoint %s of pod %q, want %s", to, flow.Endpoint, pod, s.pod)
		}
		if age := time.Since(flow.LastSeen); age < -time.Minute || age > time.Minute {
			t.Errorf("the connection to %s was last seen %s ago", to, age)
		}
	}
	datagrams := forwarding.FrontendKey{VIP: vip4, Port: clusterPort, Protocol: forwarding.ProtocolUDP}
	n.awaitFlow(t, asked.LocalAddr(), datagrams)

	found, more := n.flows(t, 1, func(key forwarding.FrontendKey) bool { return key.Protocol == forwarding.ProtocolTCP })
	if len(found) > len(n.nodes) || !more {
		t.Errorf("limit 1 per node: %d flows, more: %v; want at most %d, and more", len(found), more, len(n.nodes))
	}

	to := netip.AddrPortFrom(vip4, clusterPort)
	key := forwarding.FrontendKey{VIP: to.Addr(), Port: to.Port(), Protocol: forwarding.ProtocolTCP}
	if err := sessions[to].Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "the closed connection is not listed", func() bool {
		found, more := n.flows(t, 100, func(k forwarding.FrontendKey) bool { return k == key })
		return len(found) == 0 && !more
	})

	// Flows of a removed endpoint have ended, regardless of their entries.
	for _, node := range n.nodes {
		have := n.state(node)
		want := forwarding.NewState()
		want.Self, want.Nodes = have.Self, have.Nodes
		apply(t, node.dataplane, forwarding.Diff(have, want)...)
	}
	if found, _ := n.flows(t, 100, func(forwarding.FrontendKey) bool { return true }); len(found) > 0 {
		t.Errorf("without endpoints: flows %+v, want none", found)
	}
}

func (n *network) awaitFlow(t *testing.T, client net.Addr, key forwarding.FrontendKey) (flow Flow) {
	t.Helper()
	from := netip.MustParseAddrPort(client.String())
	await(t, "the flow of "+from.String()+" to "+key.String()+" is told", func() bool {
		found, more := n.flows(t, 100, func(k forwarding.FrontendKey) bool { return k == key })
		if len(found) == 1 {
			flow = found[0]
		}
		return len(found) == 1 && !more && flow.Client == from
	})
	return flow
}

func (n *network) flows(t *testing.T, limit int, wanted func(forwarding.FrontendKey) bool) (found []Flow, more bool) {
	t.Helper()
	for _, node := range n.nodes {
		if err := node.dataplane.RenewLease(); err != nil {
			t.Fatal(err)
		}
		flows, truncated, err := node.dataplane.Flows(limit, func(key forwarding.FrontendKey, client netip.Addr) bool {
			return client.IsValid() && wanted(key)
		})
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, flows...)
		more = more || truncated
	}
	return found, more
}

func TestEnding(t *testing.T) {
	const fin, reset = bpf.DatapathConnectionFlagCLIENT_FIN, bpf.DatapathConnectionFlagCLIENT_RST
	const serverFIN, serverReset = uint32(bpf.DatapathReverseFlagSERVER_FIN), uint32(bpf.DatapathReverseFlagSERVER_RST)
	for name, test := range map[string]struct {
		flags           bpf.DatapathConnectionFlag
		reverse         bpf.DatapathReverse
		closing, closed bool
	}{
		"open":                      {reverse: bpf.DatapathReverse{Sequence: 1, Acknowledged: 1}},
		"no reply":                  {flags: fin},
		"FIN not acknowledged":      {flags: fin, reverse: bpf.DatapathReverse{Sequence: 2, Acknowledged: 1}},
		"FIN acknowledged":          {fin, bpf.DatapathReverse{Sequence: 2, Acknowledged: 2}, true, false},
		"FIN of the endpoint":       {0, bpf.DatapathReverse{Flags: serverFIN}, true, false},
		"both":                      {fin, bpf.DatapathReverse{Flags: serverFIN, Sequence: 2, Acknowledged: 2}, true, true},
		"RST of the client":         {reset, bpf.DatapathReverse{}, false, true},
		"RST of the endpoint":       {0, bpf.DatapathReverse{Flags: serverReset}, false, true},
		"FIN and RST of the client": {fin | reset, bpf.DatapathReverse{Sequence: 2, Acknowledged: 1}, false, true},
	} {
		closing, closed := ending(bpf.DatapathConnection{Flags: uint32(test.flags)}, test.reverse)
		if closing != test.closing || closed != test.closed {
			t.Errorf("%s: closing %v, closed %v; want %v, %v", name, closing, closed, test.closing, test.closed)
		}
	}
}
