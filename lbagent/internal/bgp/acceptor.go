// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const (
	// acceptBurst is the burst of accepted connections, then one per acceptPause.
	acceptBurst = 64
	acceptPause = 2 * time.Millisecond
)

// acceptor accepts connections of passive peers at the BGP port of all node addresses. It listens only while
// there are such peers or ranges. It is not safe for concurrent use.
type acceptor struct {
	take func(conn *net.TCPConn)
	// listeners are keyed by family: IPv4 is true.
	listeners map[bool]*listener
	dropped   uint64
}

type listener struct {
	*net.TCPListener
	// passwords are set in the kernel by router or network, of which the longest prefix applies. The kernel
	// drops segments without the password's digest (RFC 2385).
	passwords map[netip.Prefix]string
	// routers are the sorted networks that the socket filter admits; nil without a filter.
	routers []netip.Prefix
}

// want opens, updates and closes listeners for passive peers and ranges.
func (a *acceptor) want(peers []model.Peer, ranges []model.Range, passwords map[string]string) error {
	wanted := map[bool]map[netip.Prefix]string{}
	add := func(routers netip.Prefix, secret string) {
		family := routers.Addr().Is4()
		if wanted[family] == nil {
			wanted[family] = map[netip.Prefix]string{}
		}
		wanted[family][routers] = passwords[secret]
	}
	for i := range peers {
		peer := &peers[i]
		// The range sets the password of its routers.
		if peer.Passive && peer.OfRange == "" {
			add(netip.PrefixFrom(peer.Address.WithZone(""), peer.Address.BitLen()), peer.PasswordSecret)
		}
	}
	for _, r := range ranges {
		add(r.Prefix, r.Session.PasswordSecret)
	}
	var errs []error
	for _, ipv4 := range []bool{true, false} {
		errs = append(errs, a.wantFamily(ipv4, wanted[ipv4]))
	}
	return errors.Join(errs...)
}

func (a *acceptor) wantFamily(ipv4 bool, passwords map[netip.Prefix]string) error {
	have := a.listeners[ipv4]
	if passwords == nil {
		if have != nil {
			a.dropped += uint64(dropped(have.TCPListener))
			_ = have.Close()
			delete(a.listeners, ipv4)
		}
		return nil
	}
	if have == nil {
		opened, err := listen(ipv4)
		if err != nil {
			return err
		}
		// Connections are accepted only after the filter and the passwords are set.
		have = &listener{TCPListener: opened, passwords: map[netip.Prefix]string{}}
		a.listeners[ipv4] = have
		defer func() { go accept(opened, a.take) }()
	}
	return errors.Join(have.admit(slices.SortedFunc(maps.Keys(passwords), netip.Prefix.Compare)), have.protect(passwords))
}

func (l *listener) admit(routers []netip.Prefix) error {
	if l.routers != nil && slices.Equal(routers, l.routers) {
		return nil
	}
	if err := admit(l.TCPListener, routers); err != nil {
		return err
	}
	l.routers = routers
	return nil
}

func (a *acceptor) drops() uint64 {
	drops := a.dropped
	for _, l := range a.listeners {
		drops += uint64(dropped(l.TCPListener))
	}
	return drops
}

func (l *listener) protect(passwords map[netip.Prefix]string) error {
	var errs []error
	set := func(routers netip.Prefix, password string) {
		if l.passwords[routers] == password {
			return
		}
		if err := setPassword(l.TCPListener, routers, password); err != nil {
			errs = append(errs, err)
			return
		}
		l.passwords[routers] = password
	}
	for routers := range l.passwords {
		if _, wanted := passwords[routers]; !wanted {
			set(routers, "")
		}
	}
	for routers, password := range passwords {
		set(routers, password)
	}
	return errors.Join(errs...)
}

func setPassword(l *net.TCPListener, routers netip.Prefix, password string) error {
	option, key := unix.TCP_MD5SIG, signature(routers.Addr(), password)
	if !routers.IsSingleIP() {
		option, key.Flags, key.Prefixlen = unix.TCP_MD5SIG_EXT, unix.TCP_MD5SIG_FLAG_PREFIX, uint8(routers.Bits())
	}
	err := onSocket(l, func(fd int) error { return unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, option, key) })
	if err != nil {
		return fmt.Errorf("set the TCP MD5 password of %s on the listening socket: %w", routers, err)
	}
	return nil
}

// listen opens the BGP port of one family. SYN-ACKs have the highest TTL for routers with TTL security (RFC
// 5082).
func listen(ipv4 bool) (*net.TCPListener, error) {
	network, level, ttl := "tcp6", unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	if ipv4 {
		network, level, ttl = "tcp4", unix.IPPROTO_IP, unix.IP_TTL
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return controlSocket(raw, func(fd int) error {
			return os.NewSyscallError("setsockopt of the TTL", unix.SetsockoptInt(fd, level, ttl, maxTTL))
		})
	}}
	// Multipath TCP, Go's default for listeners, has no TCP MD5 signatures.
	config.SetMultipathTCP(false)
	opened, err := config.Listen(context.Background(), network, fmt.Sprintf(":%d", bgpPort))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("TCP port %d is in use: another BGP speaker of this node listens on it, "+
			"so routers of passive LBPeers cannot connect", bgpPort)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for connections of routers: %w", err)
	}
	tcp, is := opened.(*net.TCPListener)
	if !is {
		return nil, fmt.Errorf("listen for connections of routers: not a TCP listener but %T", opened)
	}
	return tcp, nil
}

func accept(listener *net.TCPListener, take func(*net.TCPConn)) {
	budget := newBudget(acceptBurst, acceptPause)
	for {
		conn, err := listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		budget.take()
		if err == nil {
			take(conn)
		}
	}
}

// accepted passes a connection to its router's session. A router of a range must send an OPEN first.
func (s *Server) accepted(conn *net.TCPConn) {
	remote := addrPort(conn.RemoteAddr()).Addr()
	s.mu.Lock()
	defer s.mu.Unlock()
	if session := s.passive(conn); session != nil {
		session.offer(incoming{conn: conn})
		return
	}
	of := s.neighbors.rangeOf(remote)
	if of == nil || s.hasAddress(remote) {
		s.closed.UnknownSources++
		_ = conn.Close()
		return
	}
	if full, news := s.neighbors.isFull(of, remote); full {
		s.closed.Surplus++
		_ = conn.Close()
		if news {
			s.notify()
		}
		return
	}
	s.neighbors.addUnproven(conn)
	go s.receiveOpen(conn, of, s.routerID)
}

func (s *Server) passive(conn *net.TCPConn) *session {
	remote, local := addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr())
	for _, session := range s.sessions {
		if !session.peer.Passive || session.peer.Address != remote.Addr() {
			continue
		}
		if source, err := SourceOf(&session.peer); err == nil && (!source.IsValid() || source == local.Addr()) {
			return session
		}
	}
	return nil
}
