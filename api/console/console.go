// SPDX-License-Identifier: Apache-2.0

// Package console has the answers of an agent's console: the lines of JSON that
// `lbagent drops`, `top`, `trace`, `vips`, `bgp`, `duplicates` and `history` print and that `millrace` reads,
// and what `lbagent dump` prints for programs. Fields are added, but neither renamed nor given
// another meaning.
package console

import (
	"cmp"
	"net/netip"
	"time"
)

// Socket is where the agent listens, inside its container, for the other
// commands of lbagent.
const Socket = "/run/millrace/agent.sock"

// Line is one line; all fields but one are absent.
type Line struct {
	// Error ends what was asked for.
	Error string `json:"error,omitempty"`
	// Drops is the first line of `drops`.
	Drops *Drops `json:"drops,omitempty"`
	// Drop is a dropped packet.
	Drop *Drop `json:"drop,omitempty"`
	// Missed are samples that this reader was too slow to be told.
	Missed uint64 `json:"missed,omitempty"`
	// Counters are a line of `top`.
	Counters *Counters `json:"counters,omitempty"`
	// Trace is the line of `trace`.
	Trace *Trace `json:"trace,omitempty"`
	// VIPs is the line of `vips`.
	VIPs *VIPs `json:"vips,omitempty"`
	// BGP is the line of `bgp`.
	BGP *BGP `json:"bgp,omitempty"`
	// Hosts is the line of `duplicates`.
	Hosts *Hosts `json:"hosts,omitempty"`
	// History is the line of `history`.
	History *History `json:"history,omitempty"`
	// Preflight is the line of `preflight`.
	Preflight *Preflight `json:"preflight,omitempty"`
}

// Drops are the counters of dropped packets since the node's maps were made.
type Drops struct {
	Node    string            `json:"node"`
	Reasons map[string]uint64 `json:"reasons"`
	// Skipped are drops that were not sampled because there were many of their
	// reason in that second, Lost those because the agent did not read.
	Skipped uint64 `json:"skipped"`
	Lost    uint64 `json:"lost"`
}

// Drop is a sample of the dropped packets.
type Drop struct {
	Time   time.Time `json:"time"`
	Node   string    `json:"node"`
	Reason string    `json:"reason"`
	// Source and Destination are those of the client's packet; of a reply that
	// was dropped, Source is the client. A port is 0 where the packet shows none.
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	Protocol    string         `json:"protocol"`
	// Service is namespace/name; empty where the packet is for none.
	Service string `json:"service,omitempty"`
	// Interface is that by which it came in, of a reply that by which it would
	// have left.
	Interface string `json:"interface"`
	// Length is the bytes of the IP packet.
	Length int `json:"length"`
}

// Counters are the counters of a node at one moment. They start again at zero when
// the node's maps are created again; those of a frontend, when the frontend is.
type Counters struct {
	Time      time.Time         `json:"time"`
	Node      string            `json:"node"`
	Frontends []Frontend        `json:"frontends"`
	Drops     map[string]uint64 `json:"drops"`
	// Uplinks are the interfaces whose drivers did not take frames from XDP. Drops count these
	// frames, too.
	Uplinks []Uplink `json:"uplinks,omitempty"`
}

// Uplink counts the frames that the driver of an interface did not take.
type Uplink struct {
	Interface string `json:"interface"`
	// Transmit were to leave where they came in, Redirect came in by another interface.
	Transmit uint64 `json:"transmit"`
	Redirect uint64 `json:"redirect"`
}

// FrontendName names a VIP, port and protocol, and whose it is.
type FrontendName struct {
	VIP      netip.Addr `json:"vip"`
	Port     uint16     `json:"port"`
	Protocol string     `json:"protocol"`
	// Service is namespace/name.
	Service string `json:"service,omitempty"`
}

// Compare orders names by VIP, port and protocol.
func (n FrontendName) Compare(other FrontendName) int {
	return cmp.Or(n.VIP.Compare(other.VIP), cmp.Compare(n.Port, other.Port), cmp.Compare(n.Protocol, other.Protocol))
}

// Frontend counts one frontend.
type Frontend struct {
	FrontendName
	// Packets and Bytes (of IP packets) are what routers handed to the node.
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	// Connections are new ones that pods of the node got.
	Connections uint64 `json:"connections"`
	// Drops are by reason; reasons without any are absent.
	Drops map[string]uint64 `json:"drops,omitempty"`
}

// Packet is what is traced: a client's packet, or one that a node sent to
// another, with its outer header.
type Packet struct {
	Source      netip.AddrPort `json:"source,omitzero"`
	Destination netip.AddrPort `json:"destination,omitzero"`
	// Protocol is TCP, UDP or SCTP.
	Protocol string `json:"protocol,omitempty"`
	// Midstream asks for a packet of a connection that is there already, of TCP
	// an ACK, instead of one that opens it.
	Midstream bool `json:"midstream,omitempty"`
	// Raw is an IP packet; the other fields are then empty.
	Raw []byte `json:"raw,omitempty"`
}

// VIPs are the decisions of a node about its VIPs: to which peers it announces each of
// them, or why it does not.
type VIPs struct {
	Node string `json:"node"`
	// Time is when the agent's pass began that took the decisions.
	Time time.Time `json:"time"`
	// Groups are together all VIPs that were asked for and that the node has; each VIP
	// is in one of them.
	Groups []VIPGroup `json:"groups"`
}

// VIPGroup are VIPs that share a decision.
type VIPGroup struct {
	// Peers are the LBPeers that the VIPs are announced to; a session is established
	// with each of them.
	Peers []string `json:"peers,omitempty"`
	// Reason is one word, Message a sentence, where Peers is empty.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Addresses are sorted.
	Addresses []netip.Addr `json:"addresses"`
}

// Hosts are those that have addresses, on the links of a node's uplinks, as it has just asked.
type Hosts struct {
	Node string `json:"node"`
	// Hosts has an element for each address and each uplink with a network that holds it; none where
	// there is no such uplink.
	Hosts []Host `json:"hosts,omitempty"`
}

// Host is who answers for an address.
type Host struct {
	Address   netip.Addr `json:"address"`
	Interface string     `json:"interface"`
	// HardwareAddr is absent where nobody answers, or was asked.
	HardwareAddr string `json:"hardwareAddress,omitempty"`
	// Known is true of a node or a router of the cluster, which may answer for VIPs (proxy ARP). Of
	// their own addresses nobody is asked.
	Known bool `json:"known,omitempty"`
}

// Verdict is what becomes of a packet.
type Verdict string

// Verdicts.
const (
	// NotOurs leaves the packet to the node's own network stack.
	NotOurs Verdict = "NotOurs"
	// Dropped has a reason.
	Dropped Verdict = "Dropped"
	// Answered is done by the VIP itself, as a ping is.
	Answered Verdict = "Answered"
	// Sent is encapsulated, to another node.
	Sent Verdict = "Sent"
	// Delivered goes to an endpoint on the node.
	Delivered Verdict = "Delivered"
)

// Trace is a packet's way through one node.
type Trace struct {
	Node string `json:"node"`
	// Interface is the uplink that the packet came in by.
	Interface string `json:"interface"`
	Steps     []Step `json:"steps"`

	Verdict Verdict `json:"verdict"`
	// Reason is that of Dropped.
	Reason string `json:"reason,omitempty"`
	// Service is namespace/name of the frontend.
	Service string `json:"service,omitempty"`
	// NextNode is where it is Sent, and Packet the encapsulated packet.
	NextNode string `json:"nextNode,omitempty"`
	Packet   []byte `json:"packet,omitempty"`
	// Endpoint is where it is Delivered.
	Endpoint netip.AddrPort `json:"endpoint,omitzero"`
}

// Step is one decision.
type Step struct {
	Name string `json:"name"`
	Text string `json:"text"`
}
