// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"time"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

const (
	// learnedFor is well below the 180 s of a datagram's override.
	learnedFor               = 170 * time.Second
	surelyMoved, hardlyMoved = 235 * time.Second, 245 * time.Second
)

// lasts returns the minimum lifetime of an entry without packets. It is less than the idle timeout, because a
// packet renews the entry only every five seconds.
func lasts(flow Flow, established bool, flags bpf.DatapathConnectionFlag) time.Duration {
	switch {
	case flow.Protocol == UDP:
		return 170 * time.Second
	case flags&bpf.DatapathConnectionFlagCLIENT_RST != 0:
		return 4 * time.Second // of 10, for the last packets of a closed one
	case !established:
		return 50 * time.Second
	case flags&bpf.DatapathConnectionFlagCLIENT_FIN != 0:
		return 230 * time.Second
	default:
		return 7490 * time.Second
	}
}

func keyOf(flow Flow) any {
	clientPort, vipPort := rig.NetworkPort(flow.Client.Port()), rig.NetworkPort(flow.VIP.Port())
	if flow.VIP.Addr().Is4() {
		return &bpf.DatapathConnectionKey4{
			Client: rig.Words(flow.Client.Addr())[3], Vip: rig.Words(flow.VIP.Addr())[3],
			ClientPort: clientPort, VipPort: vipPort, Protocol: flow.Protocol,
		}
	}
	return overflowKeyOf(flow)
}

func overflowKeyOf(flow Flow) any {
	clientPort, vipPort := rig.NetworkPort(flow.Client.Port()), rig.NetworkPort(flow.VIP.Port())
	return &bpf.DatapathConnectionKey6{
		Client: bpf.DatapathAddress{Word: rig.Words(flow.Client.Addr())}, Vip: bpf.DatapathAddress{Word: rig.Words(flow.VIP.Addr())},
		ClientPort: clientPort, VipPort: vipPort, Protocol: flow.Protocol,
	}
}

func (f Flow) of(ipv4, ipv6 string) string {
	if f.VIP.Addr().Is4() {
		return ipv4
	}
	return ipv6
}

// Knows looks up the flow in a node's tables: established flows, then half-open ones.
func (c *testCluster) Knows(id forwarding.NodeID, flow Flow) (Entry, bool) {
	n := c.nodes[id]
	if n == nil {
		return Entry{}, false
	}
	established, overflow := flow.of(bpf.DatapathMapConnections4, bpf.DatapathMapConnections6), bpf.DatapathMapOverflowConn
	if flow.Protocol == UDP {
		established, overflow = flow.of(bpf.DatapathMapDatagrams4, bpf.DatapathMapDatagrams6), bpf.DatapathMapOverflowData
	}
	// VIPs over their quota use second tables, which have no other effect.
	for table, key := range map[string]any{established: keyOf(flow), overflow: overflowKeyOf(flow)} {
		var connection bpf.DatapathConnection
		if err := n.flows[table].Lookup(key, &connection); err == nil {
			return c.entry(id, flow, connection, true), true
		}
	}
	halfOpen, err := n.halfOpen.Find(flow.Client, flow.VIP, flow.Protocol)
	if err != nil || halfOpen == nil {
		return Entry{}, false
	}
	entry := c.entry(id, flow, halfOpen.Connection, false)
	validation := bpf.DatapathValidation(halfOpen.Reverse.Validation)
	entry.Unvalidated = flow.Protocol == TCP && validation != bpf.DatapathValidationVALIDATION_DONE
	if validation == bpf.DatapathValidationVALIDATION_SYN_ACK || validation == bpf.DatapathValidationVALIDATION_CONTESTED {
		entry.Offer, entry.OfferWindow = halfOpen.Reverse.Sequence+1, 1<<16
	}
	return entry, true
}

func (c *testCluster) entry(id forwarding.NodeID, flow Flow, connection bpf.DatapathConnection, established bool) Entry {
	flags := bpf.DatapathConnectionFlag(connection.Flags)
	return Entry{
		Endpoint:    forwarding.EndpointID(connection.Endpoint),
		Established: established,
		Over:        flags&bpf.DatapathConnectionFlagCLIENT_RST != 0,
		Yields:      time.Since(c.delivered[flowAt{id, flow}]) > lasts(flow, established, flags),
	}
}

func (c *testCluster) Learned(id forwarding.NodeID, flow Flow) (forwarding.NodeID, Doubt) {
	about, err := c.nodes[id].overrides.Find(flow.Client, flow.VIP, flow.Protocol)
	if err != nil || about == 0 {
		return 0, No
	}
	if time.Since(c.arrived[flowAt{id, flow}]) > learnedFor {
		return forwarding.NodeID(rig.OverrideNode(about)), Maybe
	}
	return forwarding.NodeID(rig.OverrideNode(about)), Yes
}

// Moved compares the times of changes. A row counts as moved as long as another row of its group does, because
// they share the timestamps.
func (c *testCluster) Moved(slot forwarding.NodeTableSlot, row uint32) Doubt {
	moved := c.moved[slot]
	if moved[row].IsZero() {
		return No
	}
	if time.Since(moved[row]) < surelyMoved {
		return Yes
	}
	const group = uint32(bpf.DatapathShapeROW_GROUP)
	first := (slot.First() + row) / group * group
	for other := max(first, slot.First()); other < first+group && int(other-slot.First()) < slot.Rows(); other++ {
		if time.Since(moved[other-slot.First()]) < hardlyMoved {
			return Maybe
		}
	}
	return No
}

// IsYoung reads the timestamps of the group. Tests are shorter than the lifetime of connections.
func (c *testCluster) IsYoung(id forwarding.NodeID, slot forwarding.NodeTableSlot, row uint32) bool {
	var mark bpf.DatapathRowGroup
	group := (slot.First() + row) / uint32(bpf.DatapathShapeROW_GROUP)
	err := c.nodes[id].rowGroups.Lookup(group, &mark)
	return err == nil && mark.Moved != 0
}

func (c *testCluster) Keeps(id forwarding.NodeID, slot forwarding.EndpointTableSlot, flow Flow) (forwarding.EndpointID, bool) {
	record, err := c.nodes[id].affinities.Find(flow.Client.Addr(), uint32(slot), flow.Protocol)
	if err != nil || record == nil {
		return 0, false
	}
	return forwarding.EndpointID(record.Endpoint), true
}
