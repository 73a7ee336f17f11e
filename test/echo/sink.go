// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
)

// sink takes datagrams for a port and never reads them, until ctx ends: the kernel
// drops them as soon as the socket is full, which costs least.
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
	<-ctx.Done()
	return nil
}
