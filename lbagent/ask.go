// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/dump"
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
