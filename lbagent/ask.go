// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/dump"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
)

// Dump prints what the node's pinned maps hold, whether an agent runs or not: as a table, or
// where asJSON as one consoleapi.Maps.
func Dump(pinRoot string, asJSON bool, out io.Writer) error {
	state, err := dataplane.Read(pinRoot)
	if err != nil {
		return fmt.Errorf("read the data plane below %s: %w", pinRoot, err)
	}
	return dump.Write(state, asJSON, out)
}

// Drops asks the agent at the socket which packets it drops and writes lines of
// package api/console. The counters come first, then the samples of the recent past.
// With follow, they are the samples from now on until ctx is done.
func Drops(ctx context.Context, socket string, follow bool, out io.Writer) error {
	return console.Ask(ctx, socket, console.Request{Command: console.Drops, Follow: follow}, out)
}

// TopOf is what Top is asked about: frontends of VIPs and of Services of a namespace. Empty
// fields stand for all.
type TopOf struct {
	VIPs      []netip.Addr
	Namespace string
}

// Top asks the agent at the socket for its counters, once or at an interval
// until ctx is done.
func Top(ctx context.Context, socket string, interval time.Duration, of TopOf, out io.Writer) error {
	return console.Ask(ctx, socket, console.Request{
		Command: console.Top, Interval: interval, Addresses: of.VIPs, Namespace: of.Namespace,
	}, out)
}

// Trace asks the agent at the socket what would become of a packet.
func Trace(ctx context.Context, socket string, packet consoleapi.Packet, out io.Writer) error {
	return console.Ask(ctx, socket, console.Request{Command: console.Trace, Packet: &packet}, out)
}

// VIPs asks the agent at the socket where it announces the VIPs or why it does not:
// those of addresses, or all of them without any.
func VIPs(ctx context.Context, socket string, addresses []netip.Addr, out io.Writer) error {
	return console.Ask(ctx, socket, console.Request{Command: console.VIPs, Addresses: addresses}, out)
}

// BGP asks the agent at the socket for its BGP sessions, or, with routes, for what it announces
// in them.
func BGP(ctx context.Context, socket string, routes bool, out io.Writer) error {
	command := console.BGPPeers
	if routes {
		command = console.BGPRoutes
	}
	return console.Ask(ctx, socket, console.Request{Command: command}, out)
}

// History asks the agent at the socket what it recorded.
func History(ctx context.Context, socket string, of consoleapi.HistoryQuery, out io.Writer) error {
	return console.Ask(ctx, socket, console.Request{Command: console.History, History: &of}, out)
}

// Duplicates asks the agent at the socket which hosts on the links of its uplinks have addresses.
func Duplicates(ctx context.Context, socket string, addresses []netip.Addr, out io.Writer) error {
	return console.Ask(ctx, socket, console.Request{Command: console.Duplicates, Addresses: addresses}, out)
}

// directory publishes the names and the decisions of the last pass.
type directory struct {
	node string
	// current reads the names when they are first asked for: few passes are asked.
	current   atomic.Pointer[func() *console.Directory]
	decisions atomic.Pointer[console.Decisions]
}

func newDirectory(node string) *directory {
	d := &directory{node: node}
	d.set(&model.Model{})
	return d
}

func (d *directory) set(m *model.Model) {
	read := sync.OnceValue(func() *console.Directory { return namesIn(d.node, m) })
	d.current.Store(&read)
}

// names are those of the last pass.
func (d *directory) names() *console.Directory { return (*d.current.Load())() }

// services are namespace/name by frontend.
func (d *directory) services() map[forwarding.FrontendKey]string { return d.names().Services }

func namesIn(node string, m *model.Model) *console.Directory {
	names := &console.Directory{
		Node:     node,
		Services: make(map[forwarding.FrontendKey]string, len(m.Frontends)),
		Local:    make(map[forwarding.FrontendKey]bool, len(m.Frontends)),
		Backends: map[forwarding.FrontendKey][]console.Backend{},
		Nodes:    make(map[forwarding.NodeID]string, len(m.Nodes)),
	}
	if zone := int(m.Self.Zone); zone < len(m.Zones) {
		names.Zone = m.Zones[zone]
	}
	for _, frontend := range m.Frontends {
		names.Services[frontend.Key] = frontend.Service.String()
		names.Local[frontend.Key] = frontend.Local
		for _, backend := range frontend.Backends {
			names.Backends[frontend.Key] = append(names.Backends[frontend.Key], named(backend))
		}
	}
	for _, node := range m.Nodes {
		names.Nodes[node.ID] = node.Name
	}
	return names
}

// named is a backend as the console tells it.
func named(backend model.Backend) console.Backend {
	told := console.Backend{Weight: backend.Weight, Refused: backend.Refused}
	if backend.Service.Name != "" {
		told.Service = backend.Service.String()
	}
	for _, endpoint := range backend.Own {
		told.Endpoints = append(told.Endpoints, netip.AddrPortFrom(endpoint.Address, endpoint.Port))
	}
	return told
}

// decide publishes what a pass decided; the observation is only read from then on.
func (d *directory) decide(now time.Time, observation *status.Observation) {
	d.decisions.Store(&console.Decisions{
		Time: now, VIPs: observation.Decisions, Established: observation.Established(), Sessions: observation.Sessions,
	})
}

// newConsole returns what answers the questions of the console and of the aggregated API.
func newConsole(datapath *dataplane.Dataplane, l *loop) *console.Server {
	return &console.Server{
		DataPlane: datapath, Hub: console.NewHub(), Directory: l.names.names, Decisions: l.names.decisions.Load, Speaker: l.speaker,
		Hosts: l.duplicates.Look, History: l.history.Ask,
	}
}

// serveConsole samples drops, and answers clients of the console until ctx is done, where there
// is a socket. Forwarding does not depend on the console, so its failures are logged.
func serveConsole(ctx context.Context, socket string, server *console.Server, datapath *dataplane.Dataplane, logger logr.Logger) {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		samples, err := datapath.OpenDrops()
		if err == nil {
			err = server.Hub.Run(ctx, samples)
		}
		if err != nil && ctx.Err() == nil {
			logger.Error(err, "Dropped packets are counted, but not sampled until the agent is restarted")
		}
	})
	if socket == "" {
		return
	}
	group.Go(func() {
		listener, err := console.Listen(socket)
		if err == nil {
			err = server.Serve(ctx, listener)
		}
		if err != nil && ctx.Err() == nil {
			logger.Error(err, "The console is not served until the agent is restarted: no drops, top, trace, vips, bgp and duplicates")
		}
	})
}
