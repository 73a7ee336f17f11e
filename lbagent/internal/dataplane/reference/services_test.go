// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// nodeCount nodes; the last one has no IPv4 address.
const nodeCount = 5

var vips = []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:cafe::10")}

// service is a frontend of both VIPs.
type service struct {
	port     uint16
	protocol uint8
	local    bool
	// zonal ones have a node table for each zone.
	zonal bool
	// affine ones have session affinity.
	affine bool
	// ranges are of the clients that are admitted.
	ranges program.SourceSet
	// sparse ones have no endpoint on some nodes, refusing ones on none.
	sparse, refuses bool
}

var services = []service{
	{port: 80, protocol: TCP}, {port: 443, protocol: TCP}, {port: 53, protocol: UDP},
	{port: 81, protocol: TCP, local: true}, {port: 54, protocol: UDP, local: true},
	{port: 82, protocol: TCP, zonal: true}, {port: 55, protocol: UDP, zonal: true},
	{port: 83, protocol: TCP, ranges: bothFamilies}, {port: 56, protocol: UDP, ranges: onlyIPv4, local: true},
	{port: 84, protocol: TCP, ranges: program.Nobody},
	{port: 85, protocol: TCP, refuses: true}, {port: 57, protocol: UDP, refuses: true},
	{port: 86, protocol: TCP, refuses: true, ranges: bothFamilies},
	{port: 87, protocol: TCP, sparse: true}, {port: 58, protocol: UDP, sparse: true, local: true},
	{port: 88, protocol: TCP, affine: true}, {port: 59, protocol: UDP, affine: true, zonal: true},
	{port: 89, protocol: TCP, affine: true, local: true},
}

// Sets of source ranges.
const (
	bothFamilies program.SourceSet = 1 + iota
	onlyIPv4
)

// sourceRanges are what a node's maps hold of them. Nodes with an even id still have other ranges
// than the others: whom a frontend admits is asked on the node that the router chose, and there alone.
func sourceRanges(id program.NodeID) map[program.SourceRange]struct{} {
	sets := map[program.SourceSet][]string{
		bothFamilies: {
			"198.19.0.0/27", "198.19.0.8/29", "198.19.0.40/32", "198.19.0.48/30",
			"2001:db8:1::/123", "2001:db8:1::8/125", "2001:db8:1::28/128", "2001:db8:1::30/126",
		},
		onlyIPv4:      {"198.19.0.32/28"},
		program.Pools: {"203.0.113.10/31", "2001:db8:cafe::10/127"},
	}
	if id%2 == 0 {
		sets[bothFamilies] = []string{"198.19.0.24/29", "198.19.0.32/27", "2001:db8:1::18/125", "2001:db8:1::20/123"}
	}
	ranges := map[program.SourceRange]struct{}{}
	for set, prefixes := range sets {
		for _, prefix := range prefixes {
			ranges[program.SourceRange{Set: set, Prefix: netip.MustParsePrefix(prefix)}] = struct{}{}
		}
	}
	return ranges
}

// zoneCount zones, of which one has one node, two have two, and another has none.
const zoneCount = 4

func zoneOf(id program.NodeID) program.Zone { return []program.Zone{1, 0, 3, 1, 3}[id-1] }

// tableSlots are the slots of a service's node tables: one, or one for each zone.
func tableSlots(number int) (slots [program.Zones]program.TableSlot) {
	switch service := services[number]; {
	case service.local, service.refuses:
	case service.zonal:
		for _, zone := range []program.Zone{0, 1, 3} {
			slots[zone] = program.TableSlot(zoneCount*number + 1 + int(zone))
		}
	default:
		slots[0] = program.TableSlot(zoneCount*number + 1)
	}
	return slots
}

func address(format string, args ...any) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, args...))
}

func nodeAddresses(id program.NodeID) program.Node {
	node := program.Node{IPv6: address("2001:db8:0:1::%x", id), Zone: zoneOf(id)}
	if id < nodeCount {
		node.IPv4 = address("198.51.100.%d", id)
	}
	return node
}

// tables are rows of a history without rank: each with an owner and up to three former ones.
func tables(random *rand.Rand) *program.Table {
	table := &program.Table{}
	for i := range table {
		order := random.Perm(nodeCount)
		table[i].Primary = program.NodeID(order[0] + 1)
		for j := range random.IntN(program.ChainLength + 1) {
			table[i].Chain[j] = program.NodeID(order[j+1] + 1)
		}
	}
	return table
}

// podsPerFrontend each have an address of their own, so that no two frontends share one.
const podsPerFrontend = 3

// state is what the maps of a node hold.
func state(id program.NodeID, rows map[program.TableSlot]*program.Table) *program.State {
	s := program.NewState()
	own := nodeAddresses(id)
	s.Self = program.Self{ID: id, IPv4: own.IPv4, IPv6: own.IPv6, Zone: own.Zone}
	s.Tables, s.SourceRanges = rows, sourceRanges(id)
	for other := program.NodeID(1); other <= nodeCount; other++ {
		if other != id {
			s.Nodes[other] = nodeAddresses(other)
		}
	}
	slot := 0
	for family, vip := range vips {
		s.VIPs[vip] = struct{}{}
		for i, service := range services {
			slot++
			frontend := program.Frontend{
				ID: program.FrontendID(slot), Local: service.local, Ranges: service.ranges, Refuses: service.refuses,
			}
			if service.affine {
				frontend.Affinity = 10800
			}
			if none := service.refuses || service.sparse && id%2 == 0; !none {
				frontend.Endpoints = program.EndpointSlot(slot)
				s.EndpointTables[frontend.Endpoints] = endpoints(s, id, family, slot)
			}
			slots := tableSlots(i)
			frontend.Table = slots[0]
			if service.zonal {
				frontend.Table, frontend.Zones = slots[own.Zone], slots
			}
			s.Frontends[program.FrontendKey{VIP: vip, Port: service.port, Protocol: service.protocol}] = frontend
		}
	}
	return s
}

func endpointID(slot, pod int) program.EndpointID {
	return program.EndpointID(slot*podsPerFrontend + pod)
}

// endpoints gives the state the endpoints of a frontend, and returns the table of them.
func endpoints(s *program.State, id program.NodeID, family, slot int) *program.EndpointTable {
	table := &program.EndpointTable{}
	for pod := range podsPerFrontend {
		endpoint := endpointID(slot, pod)
		at := address("198.18.%d.%d", id, endpoint)
		if family == 1 {
			at = address("2001:db8:100:%x::%x", id, endpoint)
		}
		s.Endpoints[endpoint] = program.Endpoint{Address: at, Port: 8080}
		for row := pod; row < len(table); row += podsPerFrontend {
			table[row] = endpoint
		}
	}
	return table
}
