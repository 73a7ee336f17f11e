// SPDX-License-Identifier: Apache-2.0

// Package connlimit bounds the connections that untrusted hosts can have a listener keep, and
// shares them among their sources.
package connlimit

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// sourceBits is the network that counts as one source in IPv6: a host has as many addresses of it
// as it likes (RFC 4291).
const sourceBits = 64

// Listener closes connections of sources that have too many. For one connection too many of all,
// the source with the most loses its oldest. So sources that hold many keep out none that has few,
// and close none of its connections.
type Listener struct {
	net.Listener
	// most is how many connections may be open, mostOfSource how many of one source.
	most, mostOfSource int

	mu sync.Mutex
	// open has the oldest first.
	open []*connection
}

// New limits the connections of a listener: of all, and of each source, where 0 is no limit. A
// source is an address of IPv4, or a /64 of IPv6.
func New(listener net.Listener, most, mostOfSource int) *Listener {
	return &Listener{Listener: listener, most: most, mostOfSource: mostOfSource}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		accepted := &connection{Conn: conn, of: l, source: sourceOf(conn.RemoteAddr())}
		loser, entered := l.enter(accepted)
		if loser != nil {
			_ = loser.Conn.Close()
		}
		if entered {
			return accepted, nil
		}
		// Nothing was said on it.
		_ = conn.Close()
	}
}

// enter adds a connection where its source may have one more, and returns the one that has to make
// room.
func (l *Listener) enter(accepted *connection) (loser *connection, entered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	count := map[netip.Prefix]int{}
	for _, each := range l.open {
		count[each.source]++
	}
	if l.mostOfSource > 0 && count[accepted.source] >= l.mostOfSource {
		return nil, false
	}
	if len(l.open) >= l.most {
		loser = l.open[0]
		for _, each := range l.open {
			if count[each.source] > count[loser.source] {
				loser = each
			}
		}
		l.remove(loser)
	}
	l.open = append(l.open, accepted)
	return loser, true
}

// remove leaves out a connection, where it is there still.
func (l *Listener) remove(conn *connection) {
	l.open = slices.DeleteFunc(l.open, func(each *connection) bool { return each == conn })
}

// sourceOf is the zero Prefix for what has no address.
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

// connection is a connection that counts until it is closed.
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
