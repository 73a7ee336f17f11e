// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/pires/go-proxyproto"
)

// Caller is the client whose bytes a backend gets.
type Caller struct {
	// Address counts connections. It is zero for clients that share an address.
	Address netip.Addr
	// Source and Destination are the ends of its connection, for a header of PROXY protocol.
	Source, Destination net.Addr
}

// dialer returns the dialer for bytes of a client.
func (b *Backend) dialer(from *Caller) contextDialer {
	dialer := newDialer(b.settings)
	if !b.ProxyProtocol {
		return dialer
	}
	return introducing{dialer, proxyproto.HeaderProxyFromAddrs(2, from.Source, from.Destination)}
}

// introducing makes connections that begin with a header of PROXY protocol.
type introducing struct {
	contextDialer
	header *proxyproto.Header
}

func (i introducing) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := i.contextDialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if _, err := i.header.WriteTo(conn); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("send a header of PROXY protocol to %s: %w", address, err)
	}
	return conn, nil
}
