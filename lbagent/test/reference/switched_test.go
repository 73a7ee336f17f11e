// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func byClient(f *forwarding.Frontend) { f.Affinity, f.Local = 10800, false }
func byFlow(f *forwarding.Frontend)   { f.Affinity, f.Local = 0, false }
func byRouter(f *forwarding.Frontend) { f.Affinity, f.Local = 0, true }

// Established connections remain at their nodes while session affinity or the traffic policy of their Service
// changes.
func TestConnectionsOfSwitchedServices(t *testing.T) {
	const connections = 60
	random := rand.New(rand.NewPCG(31, 32))
	c := newCluster(t, 12, random)
	c.settle(t, 1, 2, 3, 4, 5)
	for number, test := range []struct {
		name string
		// from and to are the selection of nodes before and after the change.
		from, to func(*forwarding.Frontend)
		// first are the nodes that apply the change before packets arrive, which happens again after the others.
		first []forwarding.NodeID
	}{
		{"affinity enabled", byFlow, byClient, nil},
		{"affinity enabled on some nodes", byFlow, byClient, []forwarding.NodeID{1, 2}},
		{"affinity disabled", byClient, byFlow, nil},
		{"affinity disabled on some nodes", byClient, byFlow, []forwarding.NodeID{3, 4, 5}},
		{"Local to Cluster", byRouter, byFlow, nil},
		{"Local with affinity enabled", byRouter, byClient, nil},
		{"Local with affinity disabled", byClient, byRouter, nil},
		{"Cluster to Local", byFlow, byRouter, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.switchAll(t, test.from)
			owners, entry := make([]forwarding.NodeID, connections), make([]forwarding.NodeID, connections)
			flow := func(i int) Flow {
				flow := localFlow(i)
				flow.Client = netip.AddrPortFrom(flow.Client.Addr(), uint16(2000+number*connections+i))
				return flow
			}
			for i := range owners {
				entry[i] = forwarding.NodeID(1 + random.IntN(nodeCount))
				c.establish(t, entry[i], flow(i))
				owners[i] = c.owner(flow(i))
			}
			verify := func() {
				t.Helper()
				c.forgive(t)
				for i, owner := range owners {
					for packet := range 2 {
						got := c.sendTo(t, entry[i], build(flow(i).Client, flow(i).VIP, TCP, flagACK, 10))
						if !got.delivered() || got.at != owner || packet > 0 && got.hops > 1 {
							t.Fatalf("packet %d of connection %d, from node %d: verdict %d at node %d after %d hops, want node %d with at most one hop for later packets",
								packet, i, entry[i], got.Verdict, got.at, got.hops, owner)
						}
					}
				}
			}
			if len(test.first) > 0 {
				c.switchAll(t, test.to, test.first...)
				verify()
			}
			c.switchAll(t, test.to)
			verify()
			for i := range entry {
				entry[i] = forwarding.NodeID(1 + random.IntN(nodeCount))
			}
			verify()
		})
	}
}

// switchAll changes the frontends with localPort on these nodes, or on all.
func (c *testCluster) switchAll(t *testing.T, change func(*forwarding.Frontend), nodes ...forwarding.NodeID) {
	t.Helper()
	chosen := map[forwarding.NodeID]bool{}
	for _, id := range nodes {
		chosen[id] = true
	}
	c.become(t, func(id forwarding.NodeID, s *forwarding.State) {
		if len(nodes) > 0 && !chosen[id] {
			return
		}
		s.Frontends = maps.Clone(s.Frontends)
		for key, frontend := range s.Frontends {
			if key.Port == localPort {
				change(&frontend)
				s.Frontends[key] = frontend
			}
		}
	})
}
