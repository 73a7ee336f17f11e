// SPDX-License-Identifier: Apache-2.0

package console

import "net/netip"

// Maps represents a node's pinned maps, sorted, as printed by `lbagent dump --output json`.
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

// MapNode represents a node; a missing address is invalid.
type MapNode struct {
	ID   uint16     `json:"id"`
	IPv4 netip.Addr `json:"ipv4"`
	IPv6 netip.Addr `json:"ipv6"`
	// Zone is the zone's number; 0 without a zone.
	Zone uint8 `json:"zone,omitempty"`
}

// MapFrontend represents a VIP, a port and a protocol. Tables are slots; 0 without a table.
type MapFrontend struct {
	VIP      netip.Addr `json:"vip"`
	Port     uint16     `json:"port"`
	Protocol string     `json:"protocol"`
	ID       uint32     `json:"id"`
	// OwnEndpointsFirst is true if the ingress node prefers its own endpoints.
	OwnEndpointsFirst bool             `json:"ownEndpointsFirst,omitempty"`
	NodeTable         uint32           `json:"nodeTable,omitempty"`
	EndpointTable     uint32           `json:"endpointTable,omitempty"`
	Zones             map[uint8]uint32 `json:"zones,omitempty"`
	// AffinitySeconds is the timeout of session affinity; 0: disabled.
	AffinitySeconds uint32 `json:"affinitySeconds,omitempty"`
	// Sources is the set of admitted prefixes; 0: all sources are admitted; absent: no source is admitted.
	Sources *uint32 `json:"sources,omitempty"`
}

// MapSourceRange is a prefix of a set.
type MapSourceRange struct {
	Set    uint32       `json:"set"`
	Prefix netip.Prefix `json:"prefix"`
}

// MapNodeTable counts the rows of each primary, by node id.
type MapNodeTable struct {
	Slot uint32         `json:"slot"`
	Rows map[uint16]int `json:"rows"`
}

// MapEndpointTable counts the rows of each endpoint, by endpoint id.
type MapEndpointTable struct {
	Slot uint32         `json:"slot"`
	Rows map[uint32]int `json:"rows"`
	// Refused counts the rows that reject new flows.
	Refused int `json:"refused,omitempty"`
}

// MapEndpoint is an endpoint on the node.
type MapEndpoint struct {
	ID      uint32         `json:"id"`
	Address netip.AddrPort `json:"address"`
}
