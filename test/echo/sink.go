// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"time"
)

// sinkPause makes the sink read, and answer, at most 2,000 datagrams per second.
const sinkPause = 500 * time.Microsecond

// sink takes datagrams for a port and reads only few of them, until ctx ends: the
// kernel drops the others as soon as the socket is full, which costs least. Those that it
// reads it answers, so that on the way a flow is not taken for one that nobody
// answers.
func sink(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("sink", flag.ContinueOnError)
	port := flags.Uint("port", 9000, "UDP port, on all addresses")
	if err := parse(flags, args); err != nil {
		return err
	}
	socket, err := net.ListenPacket("udp", fmt.Sprintf(":%d", *port))
	if err != nil {
		return fmt.Errorf("take datagrams: %w", err)
	}
	defer socket.Close()
	fmt.Fprintf(stdout, "taking datagrams on port %d\n", *port)
	// A blocked read ends with the context.
	defer context.AfterFunc(ctx, func() { socket.Close() })()
	return drainSlowly(ctx, socket)
}

func drainSlowly(ctx context.Context, socket net.PacketConn) error {
	buffer := make([]byte, maxDatagram)
	for {
		n, client, err := socket.ReadFrom(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("take datagrams: %w", err)
		}
		// An answer that cannot be sent is a lost one, as any datagram may be.
		_, _ = socket.WriteTo(buffer[:n], client)
		sleepUntil(ctx, time.Now().Add(sinkPause))
	}
}
