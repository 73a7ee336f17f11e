// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
)

// nodeCount is the number of nodes. The last one has no IPv4 address.
const nodeCount = 5

var vips = []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:cafe::10")}

var untrustedHosts = []netip.Addr{netip.MustParseAddr("203.0.113.16"), netip.MustParseAddr("2001:db8:cafe::14")}

type service struct {
	port     uint16
	protocol uint8
	local    bool
	zonal    bool
	affine   bool
	ranges   forwarding.SourceSet
	// sparse services have no endpoint on some nodes, refusing ones on all nodes.
	sparse, refuses bool
	// weighted services have endpoints with different weights and a refused share.
	weighted bool
}

// policy returns a frontend with the service's traffic policy, which determines whether non-TCP services have a
// node table.
func (s service) policy() *model.Frontend {
	f := &model.Frontend{Local: s.local}
	if s.affine {
		f.Affinity = 10800
	}
	return f
}

var services = []service{
	{port: 80, protocol: TCP}, {port: 443, protocol: TCP}, {port: 53, protocol: UDP},
	{port: 81, protocol: TCP, local: true}, {port: 54, protocol: UDP, local: true},
	{port: 82, protocol: TCP, zonal: true}, {port: 55, protocol: UDP, zonal: true},
	{port: 83, protocol: TCP, ranges: bothFamilies}, {port: 56, protocol: UDP, ranges: onlyIPv4, local: true},
	{port: 84, protocol: TCP, ranges: forwarding.NoSources},
	{port: 85, protocol: TCP, refuses: true}, {port: 57, protocol: UDP, refuses: true},
	{port: 86, protocol: TCP, refuses: true, ranges: bothFamilies},
	{port: 87, protocol: TCP, sparse: true}, {port: 58, protocol: UDP, sparse: true, local: true},
	{port: 93, protocol: TCP, sparse: true, local: true},
	{port: 88, protocol: TCP, affine: true}, {port: 59, protocol: UDP, affine: true, zonal: true},
	{port: 89, protocol: TCP, affine: true, local: true},
	{port: 90, protocol: TCP, weighted: true}, {port: 60, protocol: UDP, weighted: true},
	{port: 91, protocol: TCP, weighted: true, local: true}, {port: 61, protocol: UDP, weighted: true, zonal: true},
	{port: 92, protocol: TCP, weighted: true, affine: true},
}

const (
	bothFamilies forwarding.SourceSet = 1 + iota
	onlyIPv4
)

// sourceRanges returns a node's source ranges. They differ between nodes with even and odd ids, because only
// the ingress node checks them.
func sourceRanges(id forwarding.NodeID) map[forwarding.SourceRange]struct{} {
	sets := map[forwarding.SourceSet][]string{
		bothFamilies: {
			"198.19.0.0/27", "198.19.0.8/29", "198.19.0.40/32", "198.19.0.48/30",
			"2001:db8:1::/123", "2001:db8:1::8/125", "2001:db8:1::28/128", "2001:db8:1::30/126",
		},
		onlyIPv4:         {"198.19.0.32/28"},
		forwarding.Pools: {"203.0.113.10/31", "2001:db8:cafe::10/127"},
		// They include the pools and the VIPs.
		forwarding.Aggregates: {"203.0.113.8/29", "2001:db8:cafe::10/126"},
	}
	if id%2 == 0 {
		sets[bothFamilies] = []string{"198.19.0.24/29", "198.19.0.32/27", "2001:db8:1::18/125", "2001:db8:1::20/123"}
	}
	ranges := map[forwarding.SourceRange]struct{}{}
	for set, prefixes := range sets {
		for _, prefix := range prefixes {
			ranges[forwarding.SourceRange{Set: set, Prefix: netip.MustParsePrefix(prefix)}] = struct{}{}
		}
	}
	return ranges
}

// zoneCount is the number of zones: one has one node, two have two, and one has no node.
const zoneCount = 4

func zoneOf(id forwarding.NodeID) forwarding.Zone { return []forwarding.Zone{1, 0, 3, 1, 3}[id-1] }

func tableSlots(number int) (slots [forwarding.Zones]forwarding.NodeTableSlot) {
	switch service := services[number]; {
	case !service.policy().Spreads() && service.protocol != TCP, service.refuses:
	case service.zonal:
		for _, zone := range []forwarding.Zone{0, 1, 3} {
			slots[zone] = tableSlot(zoneCount*number + int(zone))
		}
	default:
		slots[0] = tableSlot(zoneCount * number)
	}
	return slots
}

const tableBlocks = 4

func tableSlot(number int) forwarding.NodeTableSlot {
	first := uint32(number+1) * tableBlocks * forwarding.Rows
	switch number % 3 {
	case 0:
		return forwarding.NodeTableSlotAt(first, forwarding.Rows)
	case 1:
		return forwarding.NodeTableSlotAt(first+5*forwarding.MinRows, forwarding.MinRows)
	default:
		return forwarding.NodeTableSlotAt(first, tableBlocks*forwarding.Rows)
	}
}

func address(format string, args ...any) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, args...))
}

func nodeAddresses(id forwarding.NodeID) forwarding.Node {
	node := forwarding.Node{IPv6: address("2001:db8:0:1::%x", id), Zone: zoneOf(id)}
	if id < nodeCount {
		node.IPv4 = address("198.51.100.%d", id)
	}
	return node
}

// plannedNodes returns a node's own entry and the other nodes' as its agent plans them.
func plannedNodes(id forwarding.NodeID) (forwarding.Self, map[forwarding.NodeID]forwarding.Node) {
	own := nodeAddresses(id)
	m := &model.Model{Self: forwarding.Self{ID: id, IPv4: own.IPv4, IPv6: own.IPv6, Zone: own.Zone}}
	for other := forwarding.NodeID(1); other <= nodeCount; other++ {
		m.Nodes = append(m.Nodes, model.Node{ID: other, Node: nodeAddresses(other)})
	}
	empty := forwarding.NewState()
	planned, _ := plan.NewPlanner(empty).Plan(empty, m, forwarding.Limits{})
	return planned.Self, planned.Nodes
}

func tables(random *rand.Rand, rows int) *forwarding.NodeTable {
	table := *forwarding.NewSizedNodeTable(rows)
	for i := range table {
		order := random.Perm(nodeCount)
		table[i].Primary = forwarding.NodeID(order[0] + 1)
		for j := range random.IntN(forwarding.ChainLength + 1) {
			table[i].Chain[j] = forwarding.NodeID(order[j+1] + 1)
		}
	}
	return &table
}

const podsPerFrontend = 3

func state(id forwarding.NodeID, rows map[forwarding.NodeTableSlot]*forwarding.NodeTable) *forwarding.State {
	s := forwarding.NewState()
	own := nodeAddresses(id)
	s.Self, s.Nodes = plannedNodes(id)
	s.NodeTables, s.SourceRanges = rows, sourceRanges(id)
	slot := 0
	for family, vip := range vips {
		s.VIPs[vip] = struct{}{}
		for i, service := range services {
			slot++
			frontend := forwarding.Frontend{
				ID: forwarding.FrontendID(slot), Local: service.policy().ServesOwn(), Ranges: service.ranges, Refuses: service.refuses,
				Affinity: service.policy().Affinity,
			}
			if none := service.refuses || service.sparse && id%2 == 0; !none {
				frontend.Endpoints = forwarding.EndpointTableSlot(slot)
				s.EndpointTables[frontend.Endpoints] = endpoints(s, id, family, slot)
			}
			slots := tableSlots(i)
			frontend.Table = slots[0]
			if service.zonal {
				frontend.Table, frontend.Zones = slots[own.Zone], slots
			}
			s.Frontends[forwarding.FrontendKey{VIP: vip, Port: service.port, Protocol: service.protocol}] = frontend
		}
	}
	return s
}

func endpointID(slot, pod int) forwarding.EndpointID {
	return forwarding.EndpointID(slot*podsPerFrontend + pod)
}

func endpoints(s *forwarding.State, id forwarding.NodeID, family, slot int) *forwarding.EndpointTable {
	table := &forwarding.EndpointTable{}
	for pod := range podsPerFrontend {
		endpoint := endpointID(slot, pod)
		at := address("198.18.%d.%d", id, endpoint)
		if family == 1 {
			at = address("2001:db8:100:%x::%x", id, endpoint)
		}
		s.Endpoints[endpoint] = forwarding.Endpoint{Address: at, Port: 8080}
		for row := pod; row < len(table); row += podsPerFrontend {
			table[row] = endpoint
		}
	}
	return table
}
