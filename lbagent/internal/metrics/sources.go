// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net"
	"net/netip"
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

// sources is a listener that closes connections of sources which have too many.
type sources struct {
	net.Listener

	mu   sync.Mutex
	open map[netip.Prefix]int
}

func limitSources(listener net.Listener) *sources {
	return &sources{Listener: listener, open: map[netip.Prefix]int{}}
}

// Accept implements net.Listener.
func (s *sources) Accept() (net.Conn, error) {
	for {
		conn, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		source := sourceOf(conn.RemoteAddr())
		if s.enter(source) {
			return &sourced{Conn: conn, leave: sync.OnceFunc(func() { s.leave(source) })}, nil
		}
		// Nothing was said on it.
		_ = conn.Close()
	}
}

func (s *sources) enter(source netip.Prefix) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[source] >= maxOfSource {
		return false
	}
	s.open[source]++
	return true
}

func (s *sources) leave(source netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[source]--; s.open[source] == 0 {
		delete(s.open, source)
	}
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
	leave func()
}

// Close implements net.Conn.
func (c *sourced) Close() error {
	c.leave()
	return c.Conn.Close()
}
