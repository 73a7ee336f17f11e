// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

const localPort = 81

func localFlow(i int) Flow {
	client := address("198.19.%d.%d", i/250, 1+i%250)
	vip := vips[i%2]
	if vip.Is6() {
		client = address("2001:db8:1:%x::%x", i/250, 1+i%250)
	}
	return Flow{Client: netip.AddrPortFrom(client, uint16(1024+i)), VIP: netip.AddrPortFrom(vip, localPort), Protocol: TCP}
}

// With policy Local, a connection survives the router's rerouting to another node, also while rows move, and
// after the failure of another node. The first packet is forwarded along the chain, and is a redirect to the
// ingress node; later packets take one hop. If the row has changed and the flow was silent for five seconds, the
// first packet is a redirect to the primary, and the second one to the ingress node.
func TestLocalConnectionsAreFound(t *testing.T) {
	const connections = 600
	random := rand.New(rand.NewPCG(11, 12))
	for _, test := range []struct {
		name string
		// between runs between the start of the connections and the rerouting.
		between func(t *testing.T, c *testCluster)
		dead    forwarding.NodeID
	}{
		{name: "at rest"},
		{name: "rows moved", between: func(t *testing.T, c *testCluster) { c.moveAll(t, random, 1) }},
		{name: "rows moved three times", between: func(t *testing.T, c *testCluster) { c.moveAll(t, random, 2) }},
		{name: "dead node", dead: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster(t, 10, random)
			c.settle(t, 1, 2, 3, 4, 5)
			owners := make([]forwarding.NodeID, connections)
			for i := range owners {
				owners[i] = forwarding.NodeID(1 + random.IntN(nodeCount))
				c.establish(t, owners[i], localFlow(i))
				if i%forgivable == 0 {
					c.forgive(t)
				}
			}
			if test.between != nil {
				test.between(t, c)
			}
			if test.dead != 0 {
				c.kill(t, test.dead)
			}
			first, later := 0, 0
			for i, owner := range owners {
				at := forwarding.NodeID(1 + random.IntN(nodeCount))
				if owner == test.dead || at == test.dead {
					continue
				}
				if i%forgivable == 0 {
					c.forgive(t)
				}
				flow := localFlow(i)
				for try := range 3 {
					got := c.sendTo(t, at, build(flow.Client, flow.VIP, TCP, flagACK, 10))
					if !got.delivered() || got.at != owner {
						t.Fatalf("connection %d, packet %d: received by node %d, owner node %d, final node %d, verdict %d",
							i, try, at, owner, got.at, got.Verdict)
					}
					if try < 2 {
						first = max(first, got.hops)
					} else {
						later = max(later, got.hops)
					}
				}
			}
			t.Logf("at most %d hops for the first two packets, %d for later packets", first, later)
			// Along the chain to the owner, a redirect back, and to the owner.
			if first > forwarding.ChainLength+3 || later > 1 {
				t.Errorf("%d hops for the first two packets, limit %d; %d for later packets, limit 1", first, forwarding.ChainLength+3, later)
			}
		})
	}
}

func TestLocalConnectionThatEnds(t *testing.T) {
	c := newCluster(t, 11, rand.New(rand.NewPCG(13, 14)))
	c.settle(t, 1, 2, 3, 4, 5)
	told := 0
	for i := range 40 {
		const owner = 3
		flow := localFlow(i)
		c.establish(t, owner, flow)
		frontend := c.Cluster[owner].State.Frontends[forwarding.FrontendKey{VIP: flow.VIP.Addr(), Port: localPort, Protocol: TCP}]
		hash, _ := flow.hash(frontend)
		primary := (*c.Cluster[owner].State.NodeTables[frontend.Table])[frontend.Table.Row(hash)].Primary
		if primary == owner {
			continue
		}
		told++
		if named, learned := c.Learned(primary, flow); learned == No || named != owner {
			t.Fatalf("connection %d: the override of node %d selects node %d, want %d", i, primary, named, owner)
		}
		reset := build(flow.Client, flow.VIP, TCP, flagRST, 0)
		if got := c.sendTo(t, owner, reset); !got.delivered() || got.at != owner {
			t.Fatalf("connection %d: RST reached node %d with verdict %d", i, got.at, got.Verdict)
		}
		if named, learned := c.Learned(primary, flow); learned != No {
			t.Errorf("connection %d is closed, but node %d still has an override to node %d", i, primary, named)
		}
	}
	if told < 10 {
		t.Errorf("only %d connections with another node as primary", told)
	}
	t.Run("SYN after a wrong override", func(t *testing.T) {
		var flows []Flow
		for i := range 8 {
			flows = append(flows, localFlow(40+i))
		}
		checkWrongOverride(t, c, flows)
	})
}

// checkWrongOverride checks that a node without endpoints forwards a SYN by the row after the owner in its override
// has rejected it, although the node still has an entry of a previous connection of the same ports.
func checkWrongOverride(t *testing.T, c *testCluster, flows []Flow) {
	const former, owner = 4, 1
	d := &differential{cluster: c, random: rand.New(rand.NewPCG(15, 16)), expected: map[string]uint64{}}
	reset := func(at forwarding.NodeID, flow Flow) {
		c.sendTo(t, at, build(flow.Client, flow.VIP, TCP, flagRST, 0))
		if entry, known := c.Knows(at, flow); !known || !entry.Over {
			t.Fatalf("%v: node %d has entry %+v after an RST, want it closed", flow, at, entry)
		}
	}
	for _, flow := range flows {
		c.handshake(t, former, flow)
		reset(former, flow)
		c.ageConnection(t, former, flow, 20*time.Second)
		c.handshake(t, owner, flow)
		c.sendTo(t, former, build(flow.Client, flow.VIP, TCP, flagACK, 0))
		if named, learned := c.Learned(former, flow); learned == No || named != owner {
			t.Fatalf("%v: the override of node %d selects node %d (%v), want %d", flow, former, named, learned, owner)
		}
		reset(owner, flow)
	}
	c.switchAll(t, func(f *forwarding.Frontend) { f.Endpoints, f.Refuses = 0, true })
	for _, flow := range flows {
		frame := build(flow.Client, flow.VIP, TCP, flagSYN, 0)
		copy(frame, append(append([]byte{}, c.Cluster[former].MAC...), routerMAC...))
		if err := d.check(former, frame); err != nil {
			t.Errorf("%v; %s", err, d.describe(former, frame))
		}
	}
}

// ageConnection makes the last packet of a node's established connection older.
func (c *testCluster) ageConnection(t *testing.T, id forwarding.NodeID, flow Flow, by time.Duration) {
	t.Helper()
	var connection bpf.DatapathConnection
	m, key := c.nodes[id].flows[flow.of(bpf.DatapathMapConnections4, bpf.DatapathMapConnections6)], keyOf(flow)
	if err := m.Lookup(key, &connection); err != nil {
		t.Fatal(err)
	}
	connection.Seen -= uint32(by.Seconds()) * ticksPerSecond(t)
	if err := m.Put(key, connection); err != nil {
		t.Fatal(err)
	}
}

// settle assigns all rows to their owners among these nodes, without a history.
func (c *testCluster) settle(t *testing.T, nodes ...forwarding.NodeID) {
	t.Helper()
	weights := map[forwarding.NodeID]uint32{}
	for _, id := range nodes {
		weights[id] = 1
	}
	rows := map[forwarding.NodeTableSlot]*forwarding.NodeTable{}
	for slot := range c.Cluster[1].State.NodeTables {
		rows[slot] = c.rendezvous.Advance(nil, sizeOf(slot), weights, func(forwarding.NodeID) bool { return true })
	}
	c.become(t, func(_ forwarding.NodeID, s *forwarding.State) { s.NodeTables = rows })
}

// kill removes a failed node from all rows and chains of the other nodes; it no longer receives packets.
func (c *testCluster) kill(t *testing.T, dead forwarding.NodeID) {
	t.Helper()
	weights := map[forwarding.NodeID]uint32{}
	for id := range c.nodes {
		if id != dead {
			weights[id] = 1
		}
	}
	rows := map[forwarding.NodeTableSlot]*forwarding.NodeTable{}
	for slot, table := range c.Cluster[1].State.NodeTables {
		rows[slot] = c.rendezvous.Advance(table, sizeOf(slot), weights, func(id forwarding.NodeID) bool { return id != dead })
	}
	c.become(t, func(id forwarding.NodeID, s *forwarding.State) {
		s.NodeTables = rows
		if id != dead {
			node := s.Nodes[dead]
			node.Down = true
			s.Nodes = maps.Clone(s.Nodes)
			s.Nodes[dead] = node
		}
	})
}
