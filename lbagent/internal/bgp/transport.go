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
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// maxTTL is the TTL of both ends of a session with TTL security (RFC 5082).
const maxTTL = 255

// dial sets all socket options before the SYN, so the connection is never without its password.
func dial(ctx context.Context, peer *model.Peer, password string, timeout time.Duration) (*net.TCPConn, error) {
	dialer := net.Dialer{
		Timeout: timeout,
		Control: func(_, _ string, raw syscall.RawConn) error {
			return controlSocket(raw, func(fd int) error { return setOptions(fd, peer, password) })
		},
	}
	source, err := SourceOf(peer)
	if err != nil {
		return nil, err
	}
	if source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	conn, err := dialer.DialContext(ctx, "tcp", peer.Socket().String())
	if err != nil {
		return nil, dialError(err, peer, password)
	}
	tcp, is := conn.(*net.TCPConn)
	if !is {
		_ = conn.Close()
		return nil, fmt.Errorf("connect to %s: not a TCP connection", peer.Socket())
	}
	return tcp, nil
}

func dialError(err error, peer *model.Peer, password string) error {
	var operation *net.OpError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s refuses connections: no BGP speaker listens there, or a filter rejects them", peer.Socket())
	case errors.As(err, &operation) && operation.Timeout() && password != "":
		return fmt.Errorf("no answer from %s: a router does not answer if its password for the session differs or is missing", peer.Socket())
	case errors.As(err, &operation) && operation.Timeout():
		return fmt.Errorf("no answer from %s: the router is down, or a filter or a password of the router drops packets", peer.Socket())
	}
	return err
}

// SourceOf returns the local address of a session with a peer; invalid if the kernel chooses it.
func SourceOf(peer *model.Peer) (netip.Addr, error) {
	if peer.Source.IsValid() || peer.SourceInterface == "" {
		return peer.Source, nil
	}
	link, err := net.InterfaceByName(peer.SourceInterface)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("source interface %s: %w", peer.SourceInterface, err)
	}
	addresses, err := link.Addrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("addresses of the source interface %s: %w", peer.SourceInterface, err)
	}
	for _, address := range addresses {
		prefix, err := netip.ParsePrefix(address.String())
		if err != nil {
			continue
		}
		// A link-local peer needs a link-local source, and other peers a global one.
		own := prefix.Addr()
		if own.Is4() == peer.Address.Is4() && own.IsLinkLocalUnicast() == peer.Address.IsLinkLocalUnicast() && !own.IsLoopback() {
			if own.Is6() && own.IsLinkLocalUnicast() {
				own = own.WithZone(link.Name)
			}
			return own, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("source interface %s has no address of the family of %s", peer.SourceInterface, peer.Address)
}

func setOptions(fd int, peer *model.Peer, password string) error {
	level, ttl, least := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL
	if peer.Address.Is6() {
		level, ttl, least = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MINHOPCOUNT
	}
	set := func(option, value int, what string) error {
		if err := unix.SetsockoptInt(fd, level, option, value); err != nil {
			return os.NewSyscallError("setsockopt of "+what, err)
		}
		return nil
	}
	if password != "" {
		if err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, signature(peer.Address, password)); err != nil {
			return os.NewSyscallError("setsockopt of the password (RFC 2385)", err)
		}
	}
	switch {
	case peer.SecurityHops > 0:
		return errors.Join(
			set(ttl, maxTTL, "the TTL"),
			set(least, maxTTL+1-int(peer.SecurityHops), "the minimum TTL (RFC 5082)"),
		)
	case peer.MultiHopTTL > 1:
		return set(ttl, int(peer.MultiHopTTL), "the TTL")
	case peer.External():
		return set(ttl, 1, "the TTL")
	}
	return nil
}

// isAlive reports whether the remote end acknowledges data or a keep-alive probe (RFC 9293, section 3.8.4).
func isAlive(conn *net.TCPConn, within time.Duration) bool {
	const (
		established = 1 // TCP_ESTABLISHED of Linux
		look        = 20 * time.Millisecond
		// clock exceeds the kernel's tick for acknowledgments.
		clock = 20 * time.Millisecond
	)
	began := time.Now()
	// Linux probes at once if the last acknowledgment is older.
	_ = conn.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second})
	// Zero values restore Go's defaults.
	defer func() { _ = conn.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true}) }()
	for ; time.Since(began) < within; time.Sleep(look) {
		var info *unix.TCPInfo
		err := onSocket(conn, func(fd int) (err error) {
			info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			return err
		})
		if err != nil || info.State != established {
			return false
		}
		if last := time.Duration(info.Last_ack_recv) * time.Millisecond; time.Since(began) > last+clock {
			return true
		}
	}
	return false
}

// signature returns the value of TCP_MD5SIG (tcp(7)): a sockaddr and the key.
func signature(address netip.Addr, password string) *unix.TCPMD5Sig {
	sig := &unix.TCPMD5Sig{Keylen: uint16(len(password))}
	copy(sig.Key[:], password)
	// Data is a sockaddr without its family: port and IPv4 address, or port, flow information and IPv6
	// address.
	if address.Is4() {
		sig.Addr.Family = unix.AF_INET
		octets := address.As4()
		copy(sig.Addr.Data[2:], octets[:])
	} else {
		sig.Addr.Family = unix.AF_INET6
		octets := address.As16()
		copy(sig.Addr.Data[6:], octets[:])
	}
	return sig
}

func addrPort(address net.Addr) netip.AddrPort {
	if tcp, is := address.(*net.TCPAddr); is {
		at := tcp.AddrPort()
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	}
	return netip.AddrPort{}
}

// setUserTimeout bounds the time of unacknowledged octets (TCP_USER_TIMEOUT); zero disables it.
func setUserTimeout(conn *net.TCPConn, limit time.Duration) {
	// Without it, the timers of BGP apply.
	_ = onSocket(conn, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
}

func onSocket(conn syscall.Conn, do func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return controlSocket(raw, do)
}

func controlSocket(raw syscall.RawConn, do func(fd int) error) error {
	var failure error
	err := raw.Control(func(fd uintptr) { failure = do(int(fd)) })
	return errors.Join(err, failure)
}
