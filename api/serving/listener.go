// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// sourceBits is the prefix length of an IPv6 source, because a host can use any address of a /64 (RFC 4291,
// section 2.5.4).
const sourceBits = 64

// Limits limits the open connections of a listener.
type Limits struct {
	Connections int
	// PerSource is the maximum number of connections of one source, an IPv4 address or an IPv6 /64; 0 means
	// no limit.
	PerSource int
}

// Listener is a TCP listener that limits its open connections, in total and per source. At the limit, a new
// connection evicts the oldest connection of the source with the most connections, so that a source with many
// connections cannot exclude or disconnect one with few.
type Listener struct {
	net.Listener
	limits Limits

	mu sync.Mutex
	// open are the open connections, oldest first.
	open []*connection
}

// Listen opens a TCP listener with limits at address ("host:port").
func Listen(address string, limits Limits) (*Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", address, err)
	}
	return Limit(listener, limits), nil
}

// Limit returns a Listener that applies limits to the connections of listener.
func Limit(listener net.Listener, limits Limits) *Listener {
	return &Listener{Listener: listener, limits: limits}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		accepted := &connection{Conn: conn, of: l, source: sourceOf(conn.RemoteAddr())}
		evicted, admitted := l.admit(accepted)
		if evicted != nil {
			_ = evicted.Conn.Close()
		}
		if admitted {
			return accepted, nil
		}
		// The server has not sent anything on this connection yet.
		_ = conn.Close()
	}
}

// admit adds a connection unless its source has reached its limit. It returns the connection to evict, or
// nil.
func (l *Listener) admit(accepted *connection) (evicted *connection, admitted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	count := map[netip.Prefix]int{}
	for _, each := range l.open {
		count[each.source]++
	}
	if l.limits.PerSource > 0 && count[accepted.source] >= l.limits.PerSource {
		return nil, false
	}
	if len(l.open) >= l.limits.Connections {
		evicted = l.open[0]
		for _, each := range l.open {
			if count[each.source] > count[evicted.source] {
				evicted = each
			}
		}
		l.remove(evicted)
	}
	l.open = append(l.open, accepted)
	return evicted, true
}

func (l *Listener) remove(conn *connection) {
	l.open = slices.DeleteFunc(l.open, func(each *connection) bool { return each == conn })
}

// sourceOf returns the source of a remote address, or the zero Prefix if it is not an IP address and port.
func sourceOf(remote net.Addr) netip.Prefix {
	parsed, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return netip.Prefix{}
	}
	address, bits := parsed.Addr().Unmap().WithZone(""), sourceBits
	if address.Is4() {
		bits = address.BitLen()
	}
	return netip.PrefixFrom(address, bits).Masked()
}

type connection struct {
	net.Conn
	of     *Listener
	source netip.Prefix
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	c.of.remove(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
