// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

// change moves rows of some node tables, as agents do when the number of endpoints per node changes; packets of
// existing flows still reach them. Other tables only gain previous primaries, as if a zone's table was removed.
// Endpoints for new flows also come and go, up to the last ones of a service.
func (c *testCluster) change(random *rand.Rand) error {
	rows := maps.Clone(c.Cluster[1].State.NodeTables)
	for slot := range rows {
		switch random.IntN(8) {
		case 0, 1:
			rows[slot] = c.advance(random, slot, rows[slot])
		case 2:
			rows[slot] = c.join(slot, rows[slot], tables(random, slot.Rows()))
		}
	}
	fading := map[uint16]bool{}
	for _, service := range services {
		fading[service.port] = random.IntN(8) == 0
	}
	for id, n := range c.nodes {
		next := *c.Cluster[id].State
		next.NodeTables = rows
		next.EndpointTables = maps.Clone(next.EndpointTables)
		for slot := range next.EndpointTables {
			if random.IntN(8) == 0 {
				next.EndpointTables[slot] = drained(&next, slot, random.IntN(2*podsPerFrontend), random)
			}
		}
		next.Frontends = c.fade(id, fading)
		if err := n.Become(&next, routerMAC); err != nil {
			return fmt.Errorf("update the tables of node %d: %w", id, err)
		}
		c.Cluster[id] = Node{State: &next, MAC: c.Cluster[id].MAC, VLANs: vlans}
	}
	return nil
}

// drained returns the endpoint table without one of the pods, which still exists, or with all of them. Pods of
// weighted services also get other weights, and another refused share, possibly zero.
func drained(s *forwarding.State, slot forwarding.EndpointTableSlot, gone int, random *rand.Rand) *forwarding.EndpointTable {
	weighted := services[(int(slot)-1)%len(services)].weighted
	shares := map[forwarding.Endpoint]table.Share{}
	for pod := range podsPerFrontend {
		if pod != gone {
			id := endpointID(int(slot), pod)
			shares[s.Endpoints[id]] = table.Share{ID: id, Weight: 1}
			if weighted {
				shares[s.Endpoints[id]] = table.Share{ID: id, Weight: random.Uint32N(10)}
			}
		}
	}
	if weighted {
		shares[table.Refused] = table.Share{ID: forwarding.RefusedEndpoint, Weight: random.Uint32N(10)}
	}
	return table.Shares(shares)
}

// fade returns the node's frontends, where no endpoint of the services with these ports takes new flows. The
// rows are retained, and new flows are refused.
func (c *testCluster) fade(id forwarding.NodeID, ports map[uint16]bool) map[forwarding.FrontendKey]forwarding.Frontend {
	frontends := maps.Clone(c.full[id])
	for key, frontend := range frontends {
		if ports[key.Port] {
			frontend.Endpoints, frontend.Refuses = 0, true
			frontends[key] = frontend
		}
	}
	return frontends
}

func sizeOf(slot forwarding.NodeTableSlot) table.Size {
	return table.Size{Rows: slot.Rows(), Ranked: min(slot.Rows(), forwarding.Rows)}
}

func (c *testCluster) advance(random *rand.Rand, slot forwarding.NodeTableSlot, old *forwarding.NodeTable) *forwarding.NodeTable {
	weights := map[forwarding.NodeID]uint32{forwarding.NodeID(1 + random.IntN(nodeCount)): 1}
	for id := forwarding.NodeID(1); id <= nodeCount; id++ {
		if random.IntN(2) == 0 {
			weights[id] = 1 + uint32(random.IntN(3))
		}
	}
	next := c.rendezvous.Advance(old, sizeOf(slot), weights, func(forwarding.NodeID) bool { return true })
	now := time.Now()
	for i, row := range *next {
		if row.Primary != (*old)[i].Primary {
			c.moved[slot][i] = now
		}
	}
	return next
}

// join returns the table with the owners of another one as previous owners. A row moves if its newest previous
// owner is new.
func (c *testCluster) join(slot forwarding.NodeTableSlot, old, other *forwarding.NodeTable) *forwarding.NodeTable {
	next := table.Join(old, other)
	now := time.Now()
	for i, row := range *next {
		previous := (*old)[i]
		if row.History > 0 && !slices.Contains(previous.Chain[:previous.History], row.Chain[0]) {
			c.moved[slot][i] = now
		}
	}
	return next
}
