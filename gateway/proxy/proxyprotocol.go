// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/pires/go-proxyproto"
)

// errNoTCP is returned for a PROXY protocol header without TCP addresses.
var errNoTCP = errors.New("the PROXY protocol header has no TCP addresses")

// balancedConn is a trusted load balancer's connection, which may begin with a PROXY protocol header
// (version 1 or 2) that RemoteAddr and LocalAddr return. All methods except Close block until the first
// bytes arrive.
type balancedConn struct{ *proxyproto.Conn }

func newBalancedConn(conn net.Conn, limit time.Duration) balancedConn {
	return balancedConn{proxyproto.NewConn(conn, proxyproto.WithPolicy(proxyproto.USE), proxyproto.SetReadHeaderTimeout(limit),
		proxyproto.ValidateHeader(func(header *proxyproto.Header) error {
			if _, _, ok := header.TCPAddrs(); !ok && !header.Command.IsLocal() {
				return errNoTCP
			}
			return nil
		}))}
}

func (c balancedConn) NetConn() net.Conn { return c.Raw() }

func (c balancedConn) CloseWrite() error { return closeWrite(c.Raw()) }

// headerHops returns 1 for a PROXY protocol header, whose sender is one of the trusted hops.
func (c *clientConn) headerHops() int {
	if balanced, ok := c.Conn.(balancedConn); ok && balanced.ProxyHeader() != nil {
		return 1
	}
	return 0
}

func headerHopsOf(r *http.Request) int {
	if conn := connOf(r); conn != nil {
		return conn.headerHops()
	}
	return 0
}

func (x *transaction) trustedHops() int {
	return int(x.virtualHost.Resource.GetTrustedHops()) - headerHopsOf(x.in)
}
