// SPDX-License-Identifier: Apache-2.0

package routerdiscovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

const (
	// retryInterval is the interval of attempts to open the socket.
	retryInterval = 4 * time.Second
	// advertiseInterval is the interval of the node's advertisements, as of FRR for unnumbered sessions, and
	// minAdvertiseInterval the shortest (MIN_DELAY_BETWEEN_RAS of RFC 4861, section 10).
	advertiseInterval    = 10 * time.Second
	minAdvertiseInterval = 3 * time.Second
	// hopLimit proves that a message was not forwarded (RFC 4861, section 6.1.2).
	hopLimit = 255
	// maxMessage is the number of octets read of a message: only the type is parsed.
	maxMessage = 64
)

var (
	allNodes   = net.ParseIP("ff02::1")
	allRouters = net.ParseIP("ff02::2")
)

// link observes the router advertisements on an interface. It sends its own, so that the router finds the node. Their
// lifetime is 0, so that no host uses the node as its default router (RFC 4861, section 4.2).
type link struct {
	device  net.Interface
	changed func()
	logger  logr.Logger
	closed  chan struct{}

	mu   sync.Mutex
	conn *ipv6.PacketConn
	// found is the router, or invalid.
	found netip.Addr
}

func (l *link) router() netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.found
}

func (l *link) close() {
	close(l.closed)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.Close()
	}
}

// run observes the link until it is closed.
func (l *link) run() {
	failed := false
	for {
		err := l.open()
		if err == nil {
			failed = false
			l.receive()
		} else if !failed {
			failed = true
			l.logger.Error(err, "Router advertisements cannot be received; the attempt is repeated")
		}
		select {
		case <-l.closed:
			return
		case <-time.After(retryInterval):
		}
	}
}

// open opens an ICMPv6 socket that receives the interface's messages of router discovery.
func (l *link) open() error {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failure error
		if err := raw.Control(func(fd uintptr) { failure = unix.BindToDevice(int(fd), l.device.Name) }); err != nil {
			return err
		}
		return failure
	}}
	socket, err := config.ListenPacket(context.Background(), "ip6:ipv6-icmp", "::")
	if err != nil {
		return fmt.Errorf("open an ICMPv6 socket on %s: %w", l.device.Name, err)
	}
	conn := ipv6.NewPacketConn(socket)
	var filter ipv6.ICMPFilter
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeRouterAdvertisement)
	filter.Accept(ipv6.ICMPTypeNeighborAdvertisement)
	filter.Accept(ipv6.ICMPTypeRouterSolicitation)
	for _, set := range []func() error{
		func() error { return conn.SetICMPFilter(&filter) },
		func() error { return conn.SetControlMessage(ipv6.FlagHopLimit, true) },
		func() error { return conn.SetMulticastHopLimit(hopLimit) },
		func() error { return conn.SetHopLimit(hopLimit) },
		func() error { return conn.SetMulticastLoopback(false) },
		func() error { return conn.JoinGroup(&l.device, &net.IPAddr{IP: allRouters}) },
	} {
		if err := set(); err != nil {
			_ = conn.Close()
			return fmt.Errorf("set up the ICMPv6 socket on %s: %w", l.device.Name, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		_ = conn.Close()
	default:
	}
	l.conn = conn
	return nil
}

// receive reads messages until the socket fails or is closed.
func (l *link) receive() {
	defer func() { _ = l.conn.Close() }()
	now := time.Now()
	s, advertise := selection{router: l.router()}, now
	if !s.router.IsValid() {
		s.due = now
	}
	buffer := make([]byte, maxMessage)
	for last := (time.Time{}); ; l.publish(s.router) {
		_ = l.conn.SetReadDeadline(earliest(advertise, s.due))
		n, control, from, err := l.conn.ReadFrom(buffer)
		now = time.Now()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if !now.Before(advertise) {
				l.send(allNodes, ipv6.ICMPTypeRouterAdvertisement, make([]byte, 8))
				last, advertise = now, now.Add(advertiseInterval)
			}
			if !s.due.IsZero() && !now.Before(s.due) {
				l.expire(&s, now)
			}
		case err != nil:
			return
		case n > 0 && control != nil && control.HopLimit == hopLimit:
			if l.handle(&s, ipv6.ICMPType(buffer[0]), from, now) {
				advertise = earliest(advertise, last.Add(minAdvertiseInterval))
			}
		}
	}
}

func earliest(a, b time.Time) time.Time {
	if b.IsZero() || a.Before(b) {
		return a
	}
	return b
}

// handle updates the selection by a message. It reports whether the sender needs the node's advertisement. The node's
// own advertisements, of another program, are ignored.
func (l *link) handle(s *selection, kind ipv6.ICMPType, from net.Addr, now time.Time) (advertise bool) {
	ip, is := from.(*net.IPAddr)
	if !is {
		return false
	}
	address, _ := netip.AddrFromSlice(ip.IP)
	source, previous := address.WithZone(l.device.Name), *s
	switch {
	case kind == ipv6.ICMPTypeRouterSolicitation:
		return true
	case !address.IsLinkLocalUnicast():
	case kind == ipv6.ICMPTypeNeighborAdvertisement:
		s.answered(source)
	case source == s.router || s.replacement.IsValid() || !l.isOwn(ip.IP):
		s.advertised(source, now)
	}
	return s.router != previous.router || s.replacement.IsValid() && !previous.replacement.IsValid()
}

// expire sends the solicitation that is due. Failed ones are repeated.
func (l *link) expire(s *selection, now time.Time) {
	switch solicit, probe := s.expire(now); {
	case solicit:
		l.send(allRouters, ipv6.ICMPTypeRouterSolicitation, nil)
	case probe.IsValid():
		l.send(probe.AsSlice(), ipv6.ICMPTypeNeighborSolicitation, probe.AsSlice())
	}
}

func (l *link) isOwn(ip net.IP) bool {
	addresses, err := l.device.Addrs()
	return err == nil && slices.ContainsFunc(addresses, func(address net.Addr) bool {
		network, is := address.(*net.IPNet)
		return is && network.IP.Equal(ip)
	})
}

// send sends a message. The kernel computes the checksum.
func (l *link) send(to net.IP, kind ipv6.ICMPType, body []byte) {
	message := append([]byte{byte(kind), 7: 0}, body...)
	_, _ = l.conn.WriteTo(message, nil, &net.IPAddr{IP: to, Zone: l.device.Name})
}

func (l *link) publish(router netip.Addr) {
	l.mu.Lock()
	previous := l.found
	l.found = router
	l.mu.Unlock()
	if router == previous {
		return
	}
	l.logger.Info("Router found by its advertisements", "router", router, "previous", previous)
	l.changed()
}
