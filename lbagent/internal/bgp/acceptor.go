// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// acceptor takes the connections of passive peers' routers, at the BGP port of all of the
// node's addresses. It listens only while there are such peers. It is not safe for concurrent
// use.
type acceptor struct {
	// take gets each connection, from whomever it is.
	take func(conn *net.TCPConn)
	// listeners are those of IPv4 (true) and IPv6 (false).
	listeners map[bool]*listener
}

type listener struct {
	*net.TCPListener
	// passwords are those in the kernel, by the router's address: what it gets from there
	// without the password's digest it drops (RFC 2385).
	passwords map[netip.Addr]string
}

// want listens for passive peers, with their passwords, and no others.
func (a *acceptor) want(peers map[string]model.Peer, passwords map[string]string) error {
	wanted := map[bool]map[netip.Addr]string{}
	for _, peer := range peers {
		if !peer.Passive {
			continue
		}
		family := peer.Address.Is4()
		if wanted[family] == nil {
			wanted[family] = map[netip.Addr]string{}
		}
		wanted[family][peer.Address.WithZone("")] = passwords[peer.PasswordSecret]
	}
	var errs []error
	for _, ipv4 := range []bool{true, false} {
		errs = append(errs, a.wantFamily(ipv4, wanted[ipv4]))
	}
	return errors.Join(errs...)
}

func (a *acceptor) wantFamily(ipv4 bool, passwords map[netip.Addr]string) error {
	have := a.listeners[ipv4]
	if passwords == nil {
		if have != nil {
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
		// The port is open, and nobody is let in before the passwords are set.
		have = &listener{TCPListener: opened, passwords: map[netip.Addr]string{}}
		a.listeners[ipv4] = have
		defer func() { go accept(opened, a.take) }()
	}
	return have.protect(passwords)
}

// protect makes the passwords in the kernel what is wanted.
func (l *listener) protect(passwords map[netip.Addr]string) error {
	var errs []error
	set := func(address netip.Addr, password string) {
		if l.passwords[address] == password {
			return
		}
		if err := setPassword(l.TCPListener, address, password); err != nil {
			errs = append(errs, err)
			return
		}
		l.passwords[address] = password
	}
	for address := range l.passwords {
		if _, wanted := passwords[address]; !wanted {
			set(address, "")
		}
	}
	for address, password := range passwords {
		set(address, password)
	}
	return errors.Join(errs...)
}

func setPassword(l *net.TCPListener, address netip.Addr, password string) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Control(func(fd uintptr) {
		failure = unix.SetsockoptTCPMD5Sig(int(fd), unix.IPPROTO_TCP, unix.TCP_MD5SIG, signature(address, password))
	})
	if err := errors.Join(err, failure); err != nil {
		return fmt.Errorf("set the password of %s where the node listens (RFC 2385): %w", address, err)
	}
	return nil
}

// listen listens at the BGP port of one family. The handshake has the highest TTL: routers
// with TTL security (RFC 5082) drop others.
func listen(ipv4 bool) (*net.TCPListener, error) {
	network, level, ttl := "tcp6", unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	if ipv4 {
		network, level, ttl = "tcp4", unix.IPPROTO_IP, unix.IP_TTL
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failure error
		err := raw.Control(func(fd uintptr) {
			failure = os.NewSyscallError("setsockopt of the TTL", unix.SetsockoptInt(int(fd), level, ttl, highestTTL))
		})
		return errors.Join(err, failure)
	}}
	opened, err := config.Listen(context.Background(), network, fmt.Sprintf(":%d", bgpPort))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("TCP port %d is taken: another BGP speaker listens on this node, "+
			"so routers of passive peers cannot connect", bgpPort)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for routers of passive peers: %w", err)
	}
	tcp, is := opened.(*net.TCPListener)
	if !is {
		return nil, fmt.Errorf("listen for routers of passive peers: not a TCP listener but %T", opened)
	}
	return tcp, nil
}

// accept gives take each connection until the listener is closed.
func accept(listener *net.TCPListener, take func(*net.TCPConn)) {
	budget := newBudget(acceptedAtOnce, acceptPause)
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

// accepted gives a connection to the session of the router that it comes from; one that has
// none is closed.
func (s *Server) accepted(conn *net.TCPConn) {
	remote, local := addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr())
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.sessions {
		if !session.peer.Passive || session.peer.Address != remote.Addr() {
			continue
		}
		if source, err := SourceOf(&session.peer); err != nil || source.IsValid() && source != local.Addr() {
			continue
		}
		session.transport.offer(conn)
		return
	}
	_ = conn.Close()
}
