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

// sinkPause limits the sink to 2,000 datagrams per second.
const sinkPause = 500 * time.Microsecond

// sink reads few datagrams until ctx ends. The kernel drops the others at a full socket, which is cheapest.
// It answers so that the flow does not count as unanswered.
func sink(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("sink", flag.ContinueOnError)
	port := flags.Uint("port", 9000, "UDP port, on all addresses")
	if err := parse(flags, args); err != nil {
		return err
	}
	socket, err := net.ListenPacket("udp", fmt.Sprintf(":%d", *port))
	if err != nil {
		return fmt.Errorf("receive datagrams: %w", err)
	}
	defer socket.Close()
	fmt.Fprintf(stdout, "taking datagrams on port %d\n", *port)
	// Closing unblocks a read.
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
			return fmt.Errorf("receive datagrams: %w", err)
		}
		_, _ = socket.WriteTo(buffer[:n], client)
		sleepUntil(ctx, time.Now().Add(sinkPause))
	}
}
