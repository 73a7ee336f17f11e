// SPDX-License-Identifier: Apache-2.0

// Package console defines the answers of an agent's console: lines of JSON that `lbagent` prints and
// `millrace` parses, and the output of `lbagent dump`. Fields may be added, but are never renamed or given
// another meaning.
package console

import (
	"cmp"
	"net/netip"
	"time"
)

// Socket is the agent's socket in its container, for the other commands of lbagent.
const Socket = "/run/millrace/agent.sock"

// Line is one line with exactly one field.
type Line struct {
	// Error is set in the last line of a failed response.
	Error string `json:"error,omitempty"`
	// Drops is the first line of `drops`.
	Drops *Drops `json:"drops,omitempty"`
	Drop  *Drop  `json:"drop,omitempty"`
	// Missed counts samples that were skipped because this reader was too slow.
	Missed    uint64     `json:"missed,omitempty"`
	Counters  *Counters  `json:"counters,omitempty"`
	Trace     *Trace     `json:"trace,omitempty"`
	VIPs      *VIPs      `json:"vips,omitempty"`
	BGP       *BGP       `json:"bgp,omitempty"`
	Hosts     *Hosts     `json:"hosts,omitempty"`
	History   *History   `json:"history,omitempty"`
	Preflight *Preflight `json:"preflight,omitempty"`
}

// Drops counts dropped packets since the node's maps were created.
type Drops struct {
	Node    string            `json:"node"`
	Reasons map[string]uint64 `json:"reasons"`
	// Skipped counts drops beyond the rate limit of samples, Lost the samples that the agent did not read.
	Skipped uint64 `json:"skipped"`
	Lost    uint64 `json:"lost"`
}

// Drop represents a sample of a dropped packet.
type Drop struct {
	Time   time.Time `json:"time"`
	Node   string    `json:"node"`
	Reason string    `json:"reason"`
	// Source and Destination are those of the client's packet; for a dropped reply, Source is the client.
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	Protocol    string         `json:"protocol"`
	// Service is namespace/name; empty if the packet belongs to no Service.
	Service string `json:"service,omitempty"`
	// Interface is the packet's incoming interface, or for a reply the intended outgoing one.
	Interface string `json:"interface"`
	// Length is the size of the IP packet in bytes.
	Length int `json:"length"`
}

// Counters represents a node's counters, which restart at zero when its maps or a frontend are recreated.
type Counters struct {
	Time      time.Time         `json:"time"`
	Node      string            `json:"node"`
	Frontends []Frontend        `json:"frontends"`
	Drops     map[string]uint64 `json:"drops"`
	// Uplinks are interfaces whose drivers rejected frames from XDP, which Drops includes.
	Uplinks []Uplink `json:"uplinks,omitempty"`
}

// Uplink represents the frames that the driver of an interface did not accept.
type Uplink struct {
	Interface string `json:"interface"`
	// Transmit counts frames for the interface that they arrived on, Redirect those from other interfaces.
	Transmit uint64 `json:"transmit"`
	Redirect uint64 `json:"redirect"`
}

// FrontendName specifies a VIP, port and protocol, with its Service.
type FrontendName struct {
	VIP      netip.Addr `json:"vip"`
	Port     uint16     `json:"port"`
	Protocol string     `json:"protocol"`
	Service  string     `json:"service,omitempty"`
}

// Compare compares names by VIP, port and protocol.
func (n FrontendName) Compare(other FrontendName) int {
	return cmp.Or(n.VIP.Compare(other.VIP), cmp.Compare(n.Port, other.Port), cmp.Compare(n.Protocol, other.Protocol))
}

// Frontend counts one frontend.
type Frontend struct {
	FrontendName
	// Packets and Bytes (of IP packets) count packets that the node received from routers.
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	// Connections counts new connections to pods on the node.
	Connections uint64 `json:"connections"`
	// Drops are by reason, without zeros.
	Drops map[string]uint64 `json:"drops,omitempty"`
}

// Packet specifies a packet to trace: a client's packet, or an encapsulated packet between nodes.
type Packet struct {
	Source      netip.AddrPort `json:"source,omitzero"`
	Destination netip.AddrPort `json:"destination,omitzero"`
	Protocol    string         `json:"protocol,omitempty"`
	// Midstream specifies a packet of an established connection, for TCP an ACK.
	Midstream bool `json:"midstream,omitempty"`
	// Raw is an IP packet; the other fields are then empty.
	Raw []byte `json:"raw,omitempty"`
}

// VIPs represents the peers to which a node announces each VIP, or the reason why it does not.
type VIPs struct {
	Node string `json:"node"`
	// Time is the start of the reconcile pass with these decisions.
	Time   time.Time  `json:"time"`
	Groups []VIPGroup `json:"groups"`
}

// VIPGroup is a group of VIPs with the same decision.
type VIPGroup struct {
	Peers []string `json:"peers,omitempty"`
	// Reason is one word, Message a sentence, if Peers is empty.
	Reason    string       `json:"reason,omitempty"`
	Message   string       `json:"message,omitempty"`
	Addresses []netip.Addr `json:"addresses"`
}

// Hosts represents the hosts on the links of a node's uplinks that have addresses, as just probed.
type Hosts struct {
	Node string `json:"node"`
	// Hosts has an element for each address and each uplink whose network contains it.
	Hosts []Host `json:"hosts,omitempty"`
}

// Host represents the host that answers for an address.
type Host struct {
	Address   netip.Addr `json:"address"`
	Interface string     `json:"interface"`
	// HardwareAddr is absent if no host answered, or if no probe was sent.
	HardwareAddr string `json:"hardwareAddress,omitempty"`
	// Known is true for a node or router, which may answer for VIPs (proxy ARP) and is not probed itself.
	Known bool `json:"known,omitempty"`
}

// Verdict represents the result for a packet.
type Verdict string

const (
	// NotOurs passes the packet to the node's network stack.
	NotOurs Verdict = "NotOurs"
	// Dropped has a reason.
	Dropped Verdict = "Dropped"
	// Answered is a reply by the programs, for example to a ping.
	Answered Verdict = "Answered"
	// Sent is encapsulated to another node.
	Sent Verdict = "Sent"
	// Delivered is forwarded to an endpoint on the node.
	Delivered Verdict = "Delivered"
)

// Trace represents a packet's path through one node.
type Trace struct {
	Node string `json:"node"`
	// Interface is the uplink that the packet arrived on.
	Interface string `json:"interface"`
	Steps     []Step `json:"steps"`

	Verdict Verdict `json:"verdict"`
	// Reason is the drop reason of Dropped.
	Reason string `json:"reason,omitempty"`
	// Service is namespace/name of the frontend.
	Service  string         `json:"service,omitempty"`
	NextNode string         `json:"nextNode,omitempty"`
	Packet   []byte         `json:"packet,omitempty"`
	Endpoint netip.AddrPort `json:"endpoint,omitzero"`
}

// Step is one decision.
type Step struct {
	Name string `json:"name"`
	Text string `json:"text"`
}
