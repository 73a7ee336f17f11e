// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"
	"net/netip"

	"github.com/millrace-lb/millrace/lbagent"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

const uplinkName = "millrace-bench"

var (
	uplinkMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 0x11}
	routerMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 0x01}
	nextHopMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0x22}
)

const (
	// flowCount is the number of flows in the cases with many.
	flowCount = 1_000_000
	// connections leaves room for all flows, because an LRU map evicts before it is full.
	connections = 2 << 20
	tcp         = 6
)

const (
	// portAway has all endpoints on other nodes, portHere on this node.
	portAway uint16 = 80 + iota
	portHere
	// The other ports also have all endpoints on other nodes. All rows of portMoved have moved.
	portMoved
	portAffinity
	portRanges
	// portFew has fewOverrides, portMany has manyOverrides.
	portFew
	portMany
	ports = iota
)

const (
	fewOverrides  = 200_000
	manyOverrides = 1_000_000
)

// affinitySeconds is the default of Kubernetes.
const affinitySeconds = 10800

const (
	selfID   forwarding.NodeID = 1
	peerID   forwarding.NodeID = 2
	perNodes                   = 20
)

var self = forwarding.Self{
	ID: selfID, IPv4: netip.MustParseAddr("198.51.100.11"), IPv6: netip.MustParseAddr("2001:db8:0:1::11"),
}

// family contains the addresses of an IP family. All clients are in one /16, or one /112.
type family struct {
	name             string
	client, vip, pod netip.Addr
	// untrusted is in no network with a VIP, neighbour in the network of a VIP.
	untrusted, neighbour netip.Addr
	// pool contains the VIP. nextDoor is not in the pool, but in the same part of the network.
	pool     netip.Prefix
	nextDoor netip.Addr
	// firstNode is the first node with only this family.
	firstNode forwarding.NodeID
	// otherClient is in another network than client, and its flows have no overrides.
	otherClient netip.Addr
	// owner is the node of the overrides and in no row.
	owner forwarding.NodeID
	// length is the minimum frame length, rounded up to 8.
	length   int
	overhead int
}

var families = []family{
	{
		name:   "IPv4",
		client: netip.MustParseAddr("198.19.0.0"), vip: netip.MustParseAddr("203.0.113.10"),
		pod: netip.MustParseAddr("198.18.1.2"), untrusted: netip.MustParseAddr("198.18.5.9"), neighbour: netip.MustParseAddr("203.0.113.99"),
		pool: netip.MustParsePrefix("203.0.113.10/31"), nextDoor: netip.MustParseAddr("203.0.113.9"),
		otherClient: netip.MustParseAddr("198.18.0.0"), owner: peerID + 2*perNodes,
		firstNode: peerID, length: 64, overhead: 60,
	},
	{
		name:   "IPv6",
		client: netip.MustParseAddr("2001:db8:1::"), vip: netip.MustParseAddr("2001:db8:cafe::10"),
		pod: netip.MustParseAddr("2001:db8:100:1::2"), untrusted: netip.MustParseAddr("2001:db8:100:5::9"), neighbour: netip.MustParseAddr("2001:db8:cafe::99"),
		pool: netip.MustParsePrefix("2001:db8:cafe::10/125"), nextDoor: netip.MustParseAddr("2001:db8:cafe::19"),
		otherClient: netip.MustParseAddr("2001:db8:2::"), owner: peerID + 2*perNodes + 1,
		firstNode: peerID + perNodes, length: 80, overhead: 80,
	},
}

const podPort = 8080

// nodes returns 20 nodes with IPv4, 20 with IPv6, and the owners; dual-stack nodes would be reached over IPv4.
func nodes() map[forwarding.NodeID]forwarding.Node {
	all := map[forwarding.NodeID]forwarding.Node{}
	for i := range forwarding.NodeID(perNodes) {
		all[families[0].firstNode+i] = forwarding.Node{IPv4: netip.AddrFrom4([4]byte{198, 51, 100, byte(20 + i)})}
		last := netip.MustParseAddr("2001:db8:0:1::").As16()
		last[15] = byte(0x20 + i)
		all[families[1].firstNode+i] = forwarding.Node{IPv6: netip.AddrFrom16(last)}
	}
	all[families[0].owner] = forwarding.Node{IPv4: netip.MustParseAddr("198.51.100.99")}
	all[families[1].owner] = forwarding.Node{IPv6: netip.MustParseAddr("2001:db8:0:1::99")}
	return all
}

// rows distributes rows over count nodes, starting at first. The next nodes are the chain.
func rows(first forwarding.NodeID, count int) *forwarding.NodeTable {
	table := *forwarding.NewNodeTable()
	at := func(i int) forwarding.NodeID { return first + forwarding.NodeID(i%count) }
	for i := range table {
		table[i].Primary = at(i)
		if count > forwarding.ChainLength {
			table[i].Chain = [forwarding.ChainLength]forwarding.NodeID{at(i + 1), at(i + 2), at(i + 3)}
		}
	}
	return &table
}

func state() *forwarding.State {
	s := forwarding.NewState()
	s.Self = self
	s.Nodes = nodes()
	here := forwarding.NodeTableSlot(1)
	s.NodeTables[here] = rows(selfID, 1)
	for i, f := range families {
		n := uint32(i) + 1
		s.Endpoints[forwarding.EndpointID(n)] = forwarding.Endpoint{Address: f.pod, Port: podPort}
		endpoints := &forwarding.EndpointTable{}
		for row := range endpoints {
			endpoints[row] = forwarding.EndpointID(n)
		}
		s.EndpointTables[forwarding.EndpointTableSlot(n)] = endpoints
		s.VIPs[f.vip] = struct{}{}
		s.SourceRanges[forwarding.SourceRange{Set: forwarding.Pools, Prefix: f.pool}] = struct{}{}
		admitted, _ := f.client.Prefix(f.client.BitLen() - 16)
		s.SourceRanges[forwarding.SourceRange{Set: sourceSet, Prefix: admitted}] = struct{}{}
		for port := portAway; port < portAway+ports; port++ {
			id := uint32(i)*ports + uint32(port-portAway) + 1
			frontend := forwarding.Frontend{ID: forwarding.FrontendID(id), Table: f.table(port)}
			switch port {
			case portHere:
				frontend.Table, frontend.Endpoints = here, forwarding.EndpointTableSlot(n)
			case portAffinity:
				frontend.Affinity = affinitySeconds
			case portRanges:
				frontend.Ranges = sourceSet
			}
			if port != portHere {
				s.NodeTables[frontend.Table] = rows(f.firstNode, perNodes)
			}
			s.Frontends[forwarding.FrontendKey{VIP: f.vip, Port: port, Protocol: tcp}] = frontend
		}
	}
	return s
}

const sourceSet = 1

func (f family) table(port uint16) forwarding.NodeTableSlot {
	first := 2
	if f.client.Is6() {
		first += ports
	}
	return forwarding.NodeTableSlot(first + int(port-portAway))
}

type world struct {
	*rig.Rig
	marks marks
}

func config() dataplane.Config {
	agent := lbagent.DefaultConfig()
	c := agent.Dataplane()
	c.Connections = connections
	c.Overrides = fewOverrides + manyOverrides
	return c
}

func newWorld() (*world, error) {
	r, err := rig.New(uplinkName, uplinkMAC, config())
	if err != nil {
		return nil, err
	}
	if err := r.Become(state(), nextHopMAC); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	w := &world{Rig: r}
	if err := w.setTunnelKeys(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	if err := w.openMarks(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}
