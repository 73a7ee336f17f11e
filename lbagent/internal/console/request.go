// SPDX-License-Identifier: Apache-2.0

// Package console answers questions about a running agent over a Unix socket: which
// packets it drops, what it counts, what becomes of a packet, and which VIPs it
// announces. The answers are the lines of package api/console.
package console

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Command is what is asked for.
type Command string

// Commands.
const (
	Drops Command = "drops"
	Top   Command = "top"
	Trace Command = "trace"
	VIPs  Command = "vips"

	BGPPeers  Command = "bgp peers"
	BGPRoutes Command = "bgp routes"

	Duplicates Command = "duplicates"
	History    Command = "history"
)

// Request is the one line that a client sends.
type Request struct {
	Command Command `json:"command"`
	// Follow asks for drops from now on, until the client hangs up; otherwise
	// those of the recent past are told.
	Follow bool `json:"follow,omitempty"`
	// Interval is that between lines of top; 0 means one line.
	Interval time.Duration `json:"interval,omitempty"`
	// Packet is what is traced.
	Packet *consoleapi.Packet `json:"packet,omitempty"`
	// Addresses are the VIPs that vips or top is asked about; none means all. Those of duplicates are
	// any addresses.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Namespace is that of the Services that top is asked about; empty means all.
	Namespace string `json:"namespace,omitempty"`
	// History is what history is asked for.
	History *consoleapi.HistoryQuery `json:"history,omitempty"`
}

// wants reports whether top is asked about a frontend of a Service (namespace/name).
func (r *Request) wants(key forwarding.FrontendKey, service string) bool {
	return (len(r.Addresses) == 0 || slices.Contains(r.Addresses, key.VIP)) &&
		(r.Namespace == "" || strings.HasPrefix(service, r.Namespace+"/"))
}

// minInterval keeps a reader of counters from keeping the agent busy.
const minInterval = 100 * time.Millisecond

// maxHosts is how many addresses hosts are asked for at a time: each is a broadcast on each uplink.
const maxHosts = 16

func (r *Request) validate() error {
	switch r.Command {
	case Drops, VIPs, BGPPeers, BGPRoutes:
		return nil
	case Top:
		if r.Interval != 0 && r.Interval < minInterval {
			return fmt.Errorf("an interval of %s is too short: it must be 0 or at least %s", r.Interval, minInterval)
		}
		return nil
	case Duplicates:
		if n := len(r.Addresses); n == 0 || n > maxHosts {
			return fmt.Errorf("%d addresses: hosts are asked for 1 to %d at a time", n, maxHosts)
		}
		return nil
	case History:
		if r.History == nil {
			return errors.New("no question about the history")
		}
		return nil
	case Trace:
		if r.Packet == nil {
			return errors.New("no packet to trace")
		}
		return nil
	default:
		return fmt.Errorf("unknown command %q", r.Command)
	}
}

// DataPlane counts and traces packets.
type DataPlane interface {
	// CountersOf counts the frontends that are wanted; without wanted, none of them.
	CountersOf(wanted func(forwarding.FrontendKey) bool) (dataplane.Counters, error)
	Trace(packet []byte) (dataplane.Trace, error)
}

// Directory has the names of what the data plane knows by number.
type Directory struct {
	// Node is this one.
	Node string
	// Zone is its zone; empty for none.
	Zone string
	// Services are namespace/name.
	Services map[forwarding.FrontendKey]string
	// Local are the frontends of Services with externalTrafficPolicy Local.
	Local map[forwarding.FrontendKey]bool
	// Backends are those of frontends that a VIPRoute leads to other Services.
	Backends map[forwarding.FrontendKey][]Backend
	Nodes    map[forwarding.NodeID]string
}

// Backend is a Service that a VIPRoute leads to.
type Backend struct {
	// Service is namespace/name; empty where the VIPRoute names none.
	Service string
	Weight  uint32
	// Refused is true where its share is refused.
	Refused bool
	// Endpoints are those on this node.
	Endpoints []netip.AddrPort
}

// service is empty where the packet is for none.
func (d *Directory) service(to netip.AddrPort, protocol uint8) string {
	return d.Services[forwarding.FrontendKey{VIP: to.Addr(), Port: to.Port(), Protocol: protocol}]
}

func (d *Directory) node(id forwarding.NodeID) string {
	if name := d.Nodes[id]; name != "" {
		return name
	}
	return fmt.Sprintf("node with id %d", id)
}

// packetOf makes the packet to trace.
func packetOf(packet *consoleapi.Packet) ([]byte, error) {
	if len(packet.Raw) > 0 {
		return packet.Raw, nil
	}
	flow := clientPacket{Source: packet.Source, Destination: packet.Destination, Midstream: packet.Midstream}
	switch strings.ToUpper(packet.Protocol) {
	case "", "TCP":
		flow.Protocol = TCP
	case "UDP":
		flow.Protocol = UDP
	case "SCTP":
		flow.Protocol = SCTP
	default:
		return nil, fmt.Errorf("protocol %q: it must be tcp, udp or sctp", packet.Protocol)
	}
	return marshal(flow)
}
