// SPDX-License-Identifier: Apache-2.0

// Package console answers those who look into a running agent, over a socket of
// the node: which packets are dropped, what is counted, what becomes of a packet.
// The answers are the lines of package inspect.
package console

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/api/inspect"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// Command is what is asked for.
type Command string

// Commands.
const (
	Drops Command = "drops"
	Top   Command = "top"
	Trace Command = "trace"
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
	Packet *inspect.Packet `json:"packet,omitempty"`
}

// minInterval keeps a reader of counters from keeping the agent busy.
const minInterval = 100 * time.Millisecond

func (r *Request) validate() error {
	switch r.Command {
	case Drops:
		return nil
	case Top:
		if r.Interval != 0 && r.Interval < minInterval {
			return fmt.Errorf("an interval of %s is too short: it must be 0 or at least %s", r.Interval, minInterval)
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

// DataPlane is what is looked into.
type DataPlane interface {
	Counters() (dataplane.Counters, error)
	Trace(packet []byte) (dataplane.Trace, error)
}

// Directory has the names of what the data plane knows by number.
type Directory struct {
	// Node is this one.
	Node string
	// Zone is its zone; empty for none.
	Zone string
	// Services are namespace/name.
	Services map[program.FrontendKey]string
	Nodes    map[program.NodeID]string
}

// service is empty where the packet is for none.
func (d *Directory) service(to netip.AddrPort, protocol uint8) string {
	return d.Services[program.FrontendKey{VIP: to.Addr(), Port: to.Port(), Protocol: protocol}]
}

func (d *Directory) node(id program.NodeID) string {
	if name := d.Nodes[id]; name != "" {
		return name
	}
	return fmt.Sprintf("node with id %d", id)
}

// packetOf makes the packet to trace.
func packetOf(packet *inspect.Packet) ([]byte, error) {
	if len(packet.Raw) > 0 {
		return packet.Raw, nil
	}
	flow := probe.Flow{Source: packet.Source, Destination: packet.Destination, Midstream: packet.Midstream}
	switch strings.ToUpper(packet.Protocol) {
	case "", "TCP":
		flow.Protocol = probe.TCP
	case "UDP":
		flow.Protocol = probe.UDP
	case "SCTP":
		flow.Protocol = probe.SCTP
	default:
		return nil, fmt.Errorf("protocol %q: it must be tcp, udp or sctp", packet.Protocol)
	}
	return probe.Packet(flow)
}
