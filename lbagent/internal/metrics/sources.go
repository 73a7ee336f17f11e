// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

const (
	// maxOfSource bounds the connections of one source, so that nobody keeps others out by connections that
	// say nothing. Scrapers behind one address have room.
	maxOfSource = 16
	// sourceBits is the network that counts as one source in IPv6: a host has as many addresses of it as it
	// likes (RFC 4291).
	sourceBits = 64
)

// sources is a listener that closes connections of sources which have too many. For one connection too
// many of all, the source with the most loses its oldest. So many sources that hold as many as each may
// have keep out none that has few.
type sources struct {
	net.Listener
	// most is how many connections may be open.
	most int

	mu sync.Mutex
	// open has the oldest first.
	open []*sourced
}

func limitSources(listener net.Listener, most int) *sources {
	return &sources{Listener: listener, most: most}
}

// Accept implements net.Listener.
func (s *sources) Accept() (net.Conn, error) {
	for {
		conn, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		accepted := &sourced{Conn: conn, of: s, source: sourceOf(conn.RemoteAddr())}
		loser, entered := s.enter(accepted)
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

// enter adds a connection where its source may have one more, and returns the one that has to make room.
func (s *sources) enter(accepted *sourced) (loser *sourced, entered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := map[netip.Prefix]int{}
	for _, each := range s.open {
		count[each.source]++
	}
	if count[accepted.source] >= maxOfSource {
		return nil, false
	}
	if len(s.open) >= s.most {
		loser = s.open[0]
		for _, each := range s.open {
			if count[each.source] > count[loser.source] {
				loser = each
			}
		}
		s.remove(loser)
	}
	s.open = append(s.open, accepted)
	return loser, true
}

// remove leaves out a connection, where it is there still.
func (s *sources) remove(conn *sourced) {
	s.open = slices.DeleteFunc(s.open, func(each *sourced) bool { return each == conn })
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

// sourced is a connection that counts until it is closed.
type sourced struct {
	net.Conn
	of     *sources
	source netip.Prefix
}

// Close implements net.Conn.
func (c *sourced) Close() error {
	c.of.mu.Lock()
	c.of.remove(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
