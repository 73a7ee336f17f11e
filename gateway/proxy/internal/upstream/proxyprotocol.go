// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/pires/go-proxyproto"
)

// DownstreamClient is the downstream client of a TCP stream.
type DownstreamClient struct {
	// Address is the key of connection limits; zero if several clients share an address.
	Address netip.Addr
	// Source and Destination are the addresses in the PROXY protocol header.
	Source, Destination net.Addr
}

func (b *Backend) dialer(from *DownstreamClient) contextDialer {
	dialer := newDialer(b.settings)
	if !b.ProxyProtocol {
		return dialer
	}
	return proxyProtocolDialer{dialer, proxyproto.HeaderProxyFromAddrs(2, from.Source, from.Destination)}
}

// proxyProtocolDialer dials connections that begin with a PROXY protocol header.
type proxyProtocolDialer struct {
	contextDialer
	header *proxyproto.Header
}

func (i proxyProtocolDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
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
