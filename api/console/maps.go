// SPDX-License-Identifier: Apache-2.0

package console

import "net/netip"

// Maps are what a node's pinned maps hold, as `lbagent dump --output json` prints them. All lists
// are sorted.
type Maps struct {
	Self           MapNode            `json:"self"`
	Nodes          []MapNode          `json:"nodes,omitempty"`
	VIPs           []netip.Addr       `json:"vips,omitempty"`
	Frontends      []MapFrontend      `json:"frontends,omitempty"`
	Pools          []netip.Prefix     `json:"pools,omitempty"`
	Aggregates     []netip.Prefix     `json:"aggregates,omitempty"`
	SourceRanges   []MapSourceRange   `json:"sourceRanges,omitempty"`
	NodeTables     []MapNodeTable     `json:"nodeTables,omitempty"`
	EndpointTables []MapEndpointTable `json:"endpointTables,omitempty"`
	Endpoints      []MapEndpoint      `json:"endpoints,omitempty"`
}

// MapNode is a node; an address that it has not is not valid.
type MapNode struct {
	ID   uint16     `json:"id"`
	IPv4 netip.Addr `json:"ipv4"`
	IPv6 netip.Addr `json:"ipv6"`
	// Zone is the zone's number; zero means none.
	Zone uint8 `json:"zone,omitempty"`
}

// MapFrontend is a VIP, a port and a protocol. Tables are named by their slots; zero means none.
type MapFrontend struct {
	VIP      netip.Addr `json:"vip"`
	Port     uint16     `json:"port"`
	Protocol string     `json:"protocol"`
	ID       uint32     `json:"id"`
	// OwnEndpointsFirst is true where the ingress node serves from its own endpoints, as far as
	// it has any.
	OwnEndpointsFirst bool   `json:"ownEndpointsFirst,omitempty"`
	NodeTable         uint32 `json:"nodeTable,omitempty"`
	EndpointTable     uint32 `json:"endpointTable,omitempty"`
	// Zones are the node tables of zones, by the zone's number, where there is more than one.
	Zones map[uint8]uint32 `json:"zones,omitempty"`
	// AffinitySeconds is zero where there is no session affinity.
	AffinitySeconds uint32 `json:"affinitySeconds,omitempty"`
	// Sources names the set of prefixes that are admitted, 0 for all, and is absent where nobody
	// is.
	Sources *uint32 `json:"sources,omitempty"`
}

// MapSourceRange is a prefix of a set.
type MapSourceRange struct {
	Set    uint32       `json:"set"`
	Prefix netip.Prefix `json:"prefix"`
}

// MapNodeTable counts the rows of each primary, by its id.
type MapNodeTable struct {
	Slot uint32         `json:"slot"`
	Rows map[uint16]int `json:"rows"`
}

// MapEndpointTable counts the rows of each endpoint, by its id.
type MapEndpointTable struct {
	Slot uint32         `json:"slot"`
	Rows map[uint32]int `json:"rows"`
	// Refused counts the rows that refuse new flows.
	Refused int `json:"refused,omitempty"`
}

// MapEndpoint is an endpoint on the node.
type MapEndpoint struct {
	ID      uint32         `json:"id"`
	Address netip.AddrPort `json:"address"`
}
