// SPDX-License-Identifier: Apache-2.0

// Package console serves queries of a running agent over a Unix socket: dropped packets, counters, packet
// traces and announced VIPs. The responses are the lines of package api/console.
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

// Command selects a query.
type Command string

// Commands of the console.
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
	Follow  bool    `json:"follow,omitempty"`
	// Interval is the interval between lines of top; 0 means one line.
	Interval time.Duration      `json:"interval,omitempty"`
	Packet   *consoleapi.Packet `json:"packet,omitempty"`
	// Addresses are the VIPs for vips or top, by default all. For duplicates they may be any addresses.
	Addresses []netip.Addr             `json:"addresses,omitempty"`
	Namespace string                   `json:"namespace,omitempty"`
	History   *consoleapi.HistoryQuery `json:"history,omitempty"`
}

func (r *Request) matches(key forwarding.FrontendKey, service string) bool {
	return (len(r.Addresses) == 0 || slices.Contains(r.Addresses, key.VIP)) &&
		(r.Namespace == "" || strings.HasPrefix(service, r.Namespace+"/"))
}

const minInterval = 100 * time.Millisecond

// maxHosts is the maximum number of addresses for hosts, because each is a broadcast on every uplink.
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
			return fmt.Errorf("%d addresses: must be 1 to %d", n, maxHosts)
		}
		return nil
	case History:
		if r.History == nil {
			return errors.New("no history query")
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
	// CountersOf counts the frontends that wanted selects, or no frontends if wanted is nil.
	CountersOf(wanted func(forwarding.FrontendKey) bool) (dataplane.Counters, error)
	Trace(packet []byte) (dataplane.Trace, error)
}

// Directory holds the names of objects that the data plane identifies by number.
type Directory struct {
	Node     string
	Zone     string
	Services map[forwarding.FrontendKey]string
	// Local are the frontends of Services with externalTrafficPolicy Local.
	Local    map[forwarding.FrontendKey]bool
	Backends map[forwarding.FrontendKey][]Backend
	Nodes    map[forwarding.NodeID]string
}

// Backend is a Service of a VIPRoute.
type Backend struct {
	Service   string
	Weight    uint32
	Refused   bool
	Endpoints []netip.AddrPort
}

// service returns an empty name if the packet is not for a Service.
func (d *Directory) service(to netip.AddrPort, protocol uint8) string {
	return d.Services[forwarding.FrontendKey{VIP: to.Addr(), Port: to.Port(), Protocol: protocol}]
}

func (d *Directory) node(id forwarding.NodeID) string {
	if name := d.Nodes[id]; name != "" {
		return name
	}
	return fmt.Sprintf("node with id %d", id)
}

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
