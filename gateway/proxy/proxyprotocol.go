// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/pires/go-proxyproto"
)

// errNoTCP is returned for a header of PROXY protocol without the addresses of a TCP connection.
var errNoTCP = errors.New("the header of PROXY protocol has no addresses of TCP")

// balancedConn is a connection from a trusted balancer. It may begin with a header of PROXY protocol, version 1
// or 2, whose addresses RemoteAddr and LocalAddr return. All its methods but Close wait for the first bytes.
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

// NetConn returns the connection below.
func (c balancedConn) NetConn() net.Conn { return c.Raw() }

// CloseWrite closes the sending direction.
func (c balancedConn) CloseWrite() error { return closeWrite(c.Raw()) }

// headerHops returns 1 if the connection began with a header of PROXY protocol. Its sender is one of the trusted
// hops: fields of a request are believed only from the remaining ones.
func (c *patientConn) headerHops() int {
	if balanced, ok := c.Conn.(balancedConn); ok && balanced.ProxyHeader() != nil {
		return 1
	}
	return 0
}

// headerHopsOf returns headerHops of the connection of a request.
func headerHopsOf(r *http.Request) int {
	if conn := connOf(r); conn != nil {
		return conn.headerHops()
	}
	return 0
}

// trustedHops returns the number of proxies in front that are believed in the request's fields.
func (x *exchange) trustedHops() int { return x.site.TrustedHops() - headerHopsOf(x.in) }
