// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"
	"net/netip"

	"github.com/millrace-lb/millrace/lbagent"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/rig"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// uplinkName is the interface that packets seem to come in by.
const uplinkName = "millrace-bench"

var (
	uplinkMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 0x11}
	routerMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 0x01}
	nextHopMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0x22}
)

const (
	// flowCount is the flows of the cases with many.
	flowCount = 1_000_000
	// connections leaves room for all of them: an LRU map evicts before it is full.
	connections = 2 << 20
	tcp         = 6
)

// Ports of the VIPs.
const (
	// portAway has all its endpoints on other nodes, portHere on this one.
	portAway uint16 = 80 + iota
	portHere
)

// peerNode is the neighbour whose encapsulated packets are taken in.
const (
	selfID   program.NodeID = 1
	peerID   program.NodeID = 2
	perNodes                = 20
)

var self = program.Self{
	ID: selfID, IPv4: netip.MustParseAddr("198.51.100.11"), IPv6: netip.MustParseAddr("2001:db8:0:1::11"),
}

// family is the addresses of one IP family. Clients are all of a /16, or a /112.
type family struct {
	name             string
	client, vip, pod netip.Addr
	// stranger has nothing to do with VIPs, neighbour is in the network of one.
	stranger, neighbour netip.Addr
	// firstNode is the first of the nodes that have this family alone.
	firstNode program.NodeID
	// length is of the frame: the shortest, rounded up to 8.
	length int
	// overhead is what encapsulation adds.
	overhead int
}

var families = []family{
	{
		name:   "IPv4",
		client: netip.MustParseAddr("198.19.0.0"), vip: netip.MustParseAddr("203.0.113.10"),
		pod: netip.MustParseAddr("198.18.1.2"), stranger: netip.MustParseAddr("198.18.5.9"), neighbour: netip.MustParseAddr("203.0.113.99"),
		firstNode: peerID, length: 64, overhead: 48,
	},
	{
		name:   "IPv6",
		client: netip.MustParseAddr("2001:db8:1::"), vip: netip.MustParseAddr("2001:db8:cafe::10"),
		pod: netip.MustParseAddr("2001:db8:100:1::2"), stranger: netip.MustParseAddr("2001:db8:100:5::9"), neighbour: netip.MustParseAddr("2001:db8:cafe::99"),
		firstNode: peerID + perNodes, length: 80, overhead: 68,
	},
}

const podPort = 8080

// nodes are 20 with IPv4 and 20 with IPv6: a node with both would be sent to by IPv4.
func nodes() map[program.NodeID]program.Node {
	all := map[program.NodeID]program.Node{}
	for i := range program.NodeID(perNodes) {
		all[families[0].firstNode+i] = program.Node{IPv4: netip.AddrFrom4([4]byte{198, 51, 100, byte(20 + i)})}
		last := netip.MustParseAddr("2001:db8:0:1::").As16()
		last[15] = byte(0x20 + i)
		all[families[1].firstNode+i] = program.Node{IPv6: netip.AddrFrom16(last)}
	}
	return all
}

// rows spreads over so many nodes from the first one on, with the next ones as chain.
func rows(first program.NodeID, count int) *program.Table {
	table := &program.Table{}
	at := func(i int) program.NodeID { return first + program.NodeID(i%count) }
	for i := range table {
		table[i].Primary = at(i)
		if count > program.ChainLength {
			table[i].Chain = [program.ChainLength]program.NodeID{at(i + 1), at(i + 2), at(i + 3)}
		}
	}
	return table
}

// state is what the maps of this node hold.
func state() *program.State {
	s := program.NewState()
	s.Self = self
	s.Nodes = nodes()
	here := program.TableSlot(1)
	s.Tables[here] = rows(selfID, 1)
	for i, f := range families {
		n := uint32(i) + 1
		away := here + program.TableSlot(n)
		s.Tables[away] = rows(f.firstNode, perNodes)
		s.Endpoints[program.EndpointID(n)] = program.Endpoint{Address: f.pod, Port: podPort}
		endpoints := &program.EndpointTable{}
		for row := range endpoints {
			endpoints[row] = program.EndpointID(n)
		}
		s.EndpointTables[program.EndpointSlot(n)] = endpoints
		s.VIPs[f.vip] = struct{}{}
		s.Frontends[program.FrontendKey{VIP: f.vip, Port: portAway, Protocol: tcp}] =
			program.Frontend{ID: program.FrontendID(2*n - 1), Table: away}
		s.Frontends[program.FrontendKey{VIP: f.vip, Port: portHere, Protocol: tcp}] =
			program.Frontend{ID: program.FrontendID(2 * n), Table: here, Endpoints: program.EndpointSlot(n)}
	}
	return s
}

// world is the data plane under test.
type world struct{ *rig.Rig }

// config is the agent's default, with room for the flows.
func config() dataplane.Config {
	agent := lbagent.DefaultConfig()
	c := agent.Dataplane()
	c.Connections = connections
	return c
}

// newWorld loads, attaches and fills.
func newWorld() (*world, error) {
	r, err := rig.New(uplinkName, uplinkMAC, config())
	if err != nil {
		return nil, err
	}
	if err := r.Become(state(), nextHopMAC); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &world{r}, nil
}
