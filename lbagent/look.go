// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/inspect"
	"github.com/millrace-lb/millrace/lbagent/internal/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// Drops asks the agent at the socket which packets it drops and writes lines of
// package inspect: the counters, then the samples of the recent past, or with
// follow those from now on until ctx is done.
func Drops(ctx context.Context, socket string, follow bool, out io.Writer) error {
	return console.Ask(ctx, socket, console.Request{Command: console.Drops, Follow: follow}, out)
}

// Top asks the agent at the socket for its counters, once or at an interval
// until ctx is done.
func Top(ctx context.Context, socket string, interval time.Duration, out io.Writer) error {
	return console.Ask(ctx, socket, console.Request{Command: console.Top, Interval: interval}, out)
}

// Trace asks the agent at the socket what would become of a packet.
func Trace(ctx context.Context, socket string, packet inspect.Packet, out io.Writer) error {
	return console.Ask(ctx, socket, console.Request{Command: console.Trace, Packet: &packet}, out)
}

// directory publishes the names of the last pass.
type directory struct {
	current atomic.Pointer[console.Directory]
}

func newDirectory(node string) *directory {
	d := &directory{}
	d.current.Store(&console.Directory{Node: node})
	return d
}

func (d *directory) set(m *model.Model) {
	next := &console.Directory{
		Node:     d.current.Load().Node,
		Services: make(map[program.FrontendKey]string, len(m.Frontends)),
		Nodes:    make(map[program.NodeID]string, len(m.Nodes)),
	}
	if zone := int(m.Self.Zone); zone < len(m.Zones) {
		next.Zone = m.Zones[zone]
	}
	for _, frontend := range m.Frontends {
		next.Services[frontend.Key] = frontend.Service.Namespace + "/" + frontend.Service.Name
	}
	for _, node := range m.Nodes {
		next.Nodes[node.ID] = node.Name
	}
	d.current.Store(next)
}

// serveConsole answers those who look into the agent until ctx is done. A node
// that cannot be looked into forwards all the same, so failures are logged.
func serveConsole(ctx context.Context, socket string, datapath *dataplane.Dataplane, names *directory, logger logr.Logger) {
	hub := console.NewHub()
	var group sync.WaitGroup
	group.Go(func() {
		samples, err := datapath.OpenDrops()
		if err == nil {
			err = hub.Run(ctx, samples)
		}
		if err != nil && ctx.Err() == nil {
			logger.Error(err, "Dropped packets are counted, but not told one by one until the agent is restarted")
		}
	})
	group.Go(func() {
		listener, err := console.Listen(socket)
		if err == nil {
			server := console.Server{DataPlane: datapath, Hub: hub, Directory: names.current.Load}
			err = server.Serve(ctx, listener)
		}
		if err != nil && ctx.Err() == nil {
			logger.Error(err, "The agent cannot be asked for drops, counters and traces until it is restarted")
		}
	})
	group.Wait()
}
