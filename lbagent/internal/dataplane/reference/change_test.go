// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/program"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

// change moves rows of some of the node tables as agents do when nodes get other numbers of
// endpoints: flows go on, and go where they are. Others get former owners only, as where the table
// of a zone has gone. Endpoints come and go for new flows, too, also the last ones of a service.
func (c *testCluster) change(random *rand.Rand) error {
	rows := maps.Clone(c.Cluster[1].State.Tables)
	for slot := range rows {
		switch random.IntN(8) {
		case 0, 1:
			rows[slot] = c.advance(random, slot, rows[slot])
		case 2:
			rows[slot] = table.Join(rows[slot], tables(random))
		}
	}
	fading := map[uint16]bool{}
	for _, service := range services {
		fading[service.port] = random.IntN(8) == 0
	}
	for id, n := range c.nodes {
		next := *c.Cluster[id].State
		next.Tables = rows
		next.EndpointTables = maps.Clone(next.EndpointTables)
		for slot := range next.EndpointTables {
			if random.IntN(8) == 0 {
				next.EndpointTables[slot] = drained(&next, slot, random.IntN(2*podsPerFrontend))
			}
		}
		next.Frontends = c.fade(id, fading)
		if err := n.Become(&next, routerMAC); err != nil {
			return fmt.Errorf("change the tables of node %d: %w", id, err)
		}
		c.Cluster[id] = Node{State: &next, MAC: c.Cluster[id].MAC}
	}
	return nil
}

// drained is the endpoint table without one of the pods, or with all: those that are
// not in it live on.
func drained(s *program.State, slot program.EndpointSlot, gone int) *program.EndpointTable {
	ids := map[program.Endpoint]program.EndpointID{}
	for pod := range podsPerFrontend {
		if pod != gone {
			id := endpointID(int(slot), pod)
			ids[s.Endpoints[id]] = id
		}
	}
	return table.Endpoints(ids)
}

// fade are the node's frontends while all endpoints of some services, by their ports, live, but take no
// new flows: the rows stay, and who begins one is refused.
func (c *testCluster) fade(id program.NodeID, ports map[uint16]bool) map[program.FrontendKey]program.Frontend {
	frontends := maps.Clone(c.full[id])
	for key, frontend := range frontends {
		if ports[key.Port] {
			frontend.Endpoints, frontend.Refuses = 0, true
			frontends[key] = frontend
		}
	}
	return frontends
}

// advance is the table after other weights. Half of the nodes have none.
func (c *testCluster) advance(random *rand.Rand, slot program.TableSlot, old *program.Table) *program.Table {
	weights := map[program.NodeID]uint32{program.NodeID(1 + random.IntN(nodeCount)): 1}
	for id := program.NodeID(1); id <= nodeCount; id++ {
		if random.IntN(2) == 0 {
			weights[id] = 1 + uint32(random.IntN(3))
		}
	}
	next := c.rendezvous.Advance(old, weights, func(program.NodeID) bool { return true })
	now := time.Now()
	for i := range next {
		if next[i].Primary != old[i].Primary {
			c.moved[slot][i] = now
		}
	}
	return next
}
