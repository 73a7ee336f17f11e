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

// MapNode represents a node. IPv4 and IPv6 are invalid if the node has no such address.
type MapNode struct {
	ID   uint16     `json:"id"`
	IPv4 netip.Addr `json:"ipv4"`
	IPv6 netip.Addr `json:"ipv6"`
	// Zone is the number of the node's zone; 0 means no zone.
	Zone uint8 `json:"zone,omitempty"`
}

// MapFrontend represents a frontend. NodeTable, EndpointTable and Zones are slots of tables; 0 means no
// table.
type MapFrontend struct {
	VIP      netip.Addr `json:"vip"`
	Port     uint16     `json:"port"`
	Protocol string     `json:"protocol"`
	ID       uint32     `json:"id"`
	// OwnEndpointsFirst is true if the ingress node prefers endpoints on the node itself.
	OwnEndpointsFirst bool             `json:"ownEndpointsFirst,omitempty"`
	NodeTable         uint32           `json:"nodeTable,omitempty"`
	EndpointTable     uint32           `json:"endpointTable,omitempty"`
	Zones             map[uint8]uint32 `json:"zones,omitempty"`
	// AffinitySeconds is the timeout of session affinity; 0 means disabled.
	AffinitySeconds uint32 `json:"affinitySeconds,omitempty"`
	// Sources is the set of admitted source prefixes; 0 admits all sources, nil rejects all.
	Sources *uint32 `json:"sources,omitempty"`
}

// MapSourceRange is a prefix in a set of admitted sources.
type MapSourceRange struct {
	Set    uint32       `json:"set"`
	Prefix netip.Prefix `json:"prefix"`
}

// MapNodeTable counts the rows of a node table by the id of their primary node.
type MapNodeTable struct {
	Slot uint32         `json:"slot"`
	Rows map[uint16]int `json:"rows"`
}

// MapEndpointTable counts the rows of an endpoint table by endpoint id.
type MapEndpointTable struct {
	Slot uint32         `json:"slot"`
	Rows map[uint32]int `json:"rows"`
	// Refused counts the rows that reject new flows.
	Refused int `json:"refused,omitempty"`
}

// MapEndpoint represents an endpoint on the node.
type MapEndpoint struct {
	ID      uint32         `json:"id"`
	Address netip.AddrPort `json:"address"`
}
