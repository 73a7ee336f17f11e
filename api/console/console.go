// SPDX-License-Identifier: Apache-2.0

// Package console defines the responses of an agent's console: lines of JSON that `lbagent` prints and
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

// Line is one line of a response. Exactly one field is set.
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
	// Skipped counts drops without a sample because of the rate limit, Lost the samples that the agent did
	// not read.
	Skipped uint64 `json:"skipped"`
	Lost    uint64 `json:"lost"`
}

// Drop represents a sample of a dropped packet.
type Drop struct {
	Time   time.Time `json:"time"`
	Node   string    `json:"node"`
	Reason string    `json:"reason"`
	// Source and Destination are those of the client's packet. For a dropped reply, Source is the client.
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	Protocol    string         `json:"protocol"`
	// Service is "namespace/name"; empty if the packet belongs to no Service.
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
	// Uplinks are the interfaces whose drivers rejected frames from XDP. Drops includes these frames.
	Uplinks []Uplink `json:"uplinks,omitempty"`
}

// Uplink represents the frames that the driver of an interface did not accept.
type Uplink struct {
	Interface string `json:"interface"`
	// Transmit counts frames that arrived on this interface, Redirect those from other interfaces.
	Transmit uint64 `json:"transmit"`
	Redirect uint64 `json:"redirect"`
}

// FrontendName identifies a frontend by VIP, port and protocol, and names its Service.
type FrontendName struct {
	VIP      netip.Addr `json:"vip"`
	Port     uint16     `json:"port"`
	Protocol string     `json:"protocol"`
	Service  string     `json:"service,omitempty"`
}

// Compare orders names by VIP, port and protocol.
func (n FrontendName) Compare(other FrontendName) int {
	return cmp.Or(n.VIP.Compare(other.VIP), cmp.Compare(n.Port, other.Port), cmp.Compare(n.Protocol, other.Protocol))
}

// Frontend represents the counters of one frontend.
type Frontend struct {
	FrontendName
	// Packets and Bytes count the packets that the node received from routers; Bytes is the size of the IP
	// packets.
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	// Connections counts new connections to pods on the node.
	Connections uint64 `json:"connections"`
	// Drops counts dropped packets by reason, without zeros.
	Drops map[string]uint64 `json:"drops,omitempty"`
}

// Packet specifies a packet to trace: a client's packet, or an encapsulated packet between nodes.
type Packet struct {
	Source      netip.AddrPort `json:"source,omitzero"`
	Destination netip.AddrPort `json:"destination,omitzero"`
	Protocol    string         `json:"protocol,omitempty"`
	// Midstream specifies a packet of an established connection: for TCP, one with the flag ACK.
	Midstream bool `json:"midstream,omitempty"`
	// Raw is a complete IP packet. If it is set, the other fields are empty.
	Raw []byte `json:"raw,omitempty"`
}

// VIPs represents the peers to which a node announces each VIP, or the reason why it does not announce the
// VIP.
type VIPs struct {
	Node string `json:"node"`
	// Time is the start of the reconcile pass that made these decisions.
	Time   time.Time  `json:"time"`
	Groups []VIPGroup `json:"groups"`
}

// VIPGroup is a group of VIPs with the same decision.
type VIPGroup struct {
	Peers []string `json:"peers,omitempty"`
	// Reason is one word and Message a sentence. Both are set if Peers is empty.
	Reason    string       `json:"reason,omitempty"`
	Message   string       `json:"message,omitempty"`
	Addresses []netip.Addr `json:"addresses"`
}

// Hosts represents the hosts on the links of a node's uplinks that have given addresses, as just probed.
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
	// Known is true for a node or router. It may answer for VIPs (proxy ARP), and is not probed itself.
	Known bool `json:"known,omitempty"`
}

// Verdict represents the result of tracing a packet.
type Verdict string

const (
	// NotOurs means that the packet is passed to the node's network stack.
	NotOurs Verdict = "NotOurs"
	// Dropped means that the packet is dropped, with a reason.
	Dropped Verdict = "Dropped"
	// Answered means that the programs reply to the packet, for example to a ping.
	Answered Verdict = "Answered"
	// Sent means that the packet is encapsulated and sent to another node.
	Sent Verdict = "Sent"
	// Delivered means that the packet is forwarded to an endpoint on the node.
	Delivered Verdict = "Delivered"
)

// Trace represents a packet's path through one node.
type Trace struct {
	Node string `json:"node"`
	// Interface is the uplink that the packet arrived on.
	Interface string `json:"interface"`
	Steps     []Step `json:"steps"`

	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason,omitempty"`
	// Service is "namespace/name" of the frontend's Service.
	Service  string         `json:"service,omitempty"`
	NextNode string         `json:"nextNode,omitempty"`
	Packet   []byte         `json:"packet,omitempty"`
	Endpoint netip.AddrPort `json:"endpoint,omitzero"`
}

// Step is one decision about a traced packet.
type Step struct {
	Name string `json:"name"`
	Text string `json:"text"`
}
