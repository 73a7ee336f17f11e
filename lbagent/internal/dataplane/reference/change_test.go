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
// of a zone has gone.
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
	for id, n := range c.nodes {
		next := *c.Cluster[id].State
		next.Tables = rows
		if err := n.Become(&next, routerMAC); err != nil {
			return fmt.Errorf("change the tables of node %d: %w", id, err)
		}
		c.Cluster[id] = Node{State: &next, MAC: c.Cluster[id].MAC}
	}
	return nil
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
