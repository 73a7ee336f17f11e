// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const (
	// readBurst is the burst of a router's messages, enough for a full table, then one per readPause.
	readBurst = 250_000
	readPause = 100 * time.Microsecond
	// readBuffer is in octets.
	readBuffer = 1 << 14
)

// connection runs the finite state machine on a connection with the router. One goroutine reads and handles
// events, another one writes.
type connection struct {
	*session
	tcp    *net.TCPConn
	early  []byte
	peer   model.Peer
	writer *writer
	// established is true once routes are announced. Only run uses it.
	established bool
	// opened is nil before the router's OPEN.
	opened atomic.Pointer[routerOpen]

	mu sync.Mutex
	// ending is the event that ends the connection from outside, or nil.
	ending *input
	hold   time.Duration
}

// input is an event with its cause.
type input struct {
	received
	message []byte
	err     error
	// notification is for events of the node, with the reason to report, if any.
	notification *protocolError
	reason       string
}

func (s *session) newConnection(next incoming, peer *model.Peer) *connection {
	c := &connection{session: s, tcp: next.conn, early: next.open, peer: *peer, hold: openTimeout}
	c.writer = newWriter(c.tcp)
	c.writer.wanted, c.writer.sent = s.wanted, &s.sent
	c.writer.invalid = func(err error) { s.observed.fail(rankProtocol, err.Error()) }
	c.writer.keepalive = func() bool { return s.step(keepaliveTimerExpires).do&sendKeepalive != 0 }
	return c
}

// end ends the connection by an event of the node.
func (c *connection) end(in input) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending == nil {
		c.ending = &in
		_ = c.tcp.SetReadDeadline(time.Now())
	}
}

// run handles events until the connection has ended.
func (c *connection) run() {
	defer func() {
		_ = c.tcp.Close()
		c.writer.end(nil)
		<-c.writer.done
	}()
	setUserTimeout(c.tcp, userTimeout)
	go c.writer.run(c.abandon)
	connected := tcpConnected
	if c.peer.Passive {
		connected = tcpAccepted
	}
	reader, buffer := bufio.NewReaderSize(c.tcp, readBuffer), make([]byte, maxMessageLength)
	flood := newBudget(readBurst, readPause)
	for in := (input{received: received{event: connected}}); c.handle(in, reader); in = c.next(reader, buffer) {
		// TCP flow control holds back unread messages.
		c.throttle(flood.take())
	}
}

// abandon ends the connection after a write error. After the SendHoldTimer or if a deadline has passed, the
// way to the router may be cut; otherwise received messages, which may contain a NOTIFICATION, are read.
func (c *connection) abandon(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.end(input{received: received{event: sendHoldTimerExpires}, err: err})
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = finalReadTimeout
	_ = c.tcp.SetReadDeadline(time.Now().Add(finalReadTimeout))
}

// next reads the next message, within the hold time.
func (c *connection) next(reader *bufio.Reader, buffer []byte) input {
	message := c.early
	c.early = nil
	if message == nil {
		c.mu.Lock()
		if c.ending == nil {
			_ = c.tcp.SetReadDeadline(time.Now().Add(c.hold))
		}
		c.mu.Unlock()
		var err error
		message, err = readMessage(reader, buffer)
		if in, ended := c.endOf(err); ended {
			return in
		}
	}
	r, err := parseMessage(message, c.observed.current(), &c.peer, c.self)
	return input{received: r, message: message, err: err}
}

// endOf returns the event of a read error, or of a request to end the connection.
func (c *connection) endOf(err error) (in input, ended bool) {
	c.mu.Lock()
	requested := c.ending
	c.mu.Unlock()
	var protocol *protocolError
	switch {
	case requested != nil:
		return *requested, true
	case err == nil:
		return input{}, false
	case errors.As(err, &protocol):
		return input{received: received{event: headerError}, err: err}, true
	case errors.Is(err, os.ErrDeadlineExceeded) && c.writer.failure() == nil:
		return input{received: received{event: holdTimerExpires}, err: err}, true
	}
	return input{received: received{event: tcpFails}, err: err}, true
}

// handle executes the transition of an event and reports whether the connection remains.
func (c *connection) handle(in input, reader io.Reader) bool {
	if in.open != nil {
		c.role = in.open.role
	}
	before := c.observed.current()
	t := c.step(in.event)
	if t.do&sendOpen != 0 {
		open, err := c.ownOpen()
		if err != nil {
			c.observed.fail(rankProtocol, err.Error())
			return false
		}
		c.writer.send(open)
	}
	if in.event == openReceived && t.do&startHold != 0 {
		c.negotiate(in.open)
	}
	if t.do&sendKeepalive != 0 {
		c.writer.send(encode(bgp.BGP_MSG_KEEPALIVE))
	}
	if in.event == updateReceived && before == stateEstablished {
		c.received.Add(1)
	}
	if t.do&establish != 0 {
		c.established = true
		setUserTimeout(c.tcp, 0)
		c.announce()
	}
	if t.do&resendRoutes != 0 {
		c.writer.update(func() { c.writer.refresh = c.writer.refresh.union(in.refresh) })
	}
	if t.do&releaseTCP == 0 {
		return true
	}
	c.release(in, before, t.do&sendNotification != 0, reader)
	return false
}

func (c *connection) ownOpen() ([]byte, error) {
	first := c.observed.session().Flaps == 0
	return ownOpen{
		peer: &c.peer, id: c.self, restarting: c.restarting && first, forwarding: c.forwarding || !first, role: c.ownRole,
	}.encode()
}

func (c *connection) negotiate(open *routerOpen) {
	times := negotiated(&c.peer, open.holdTime)
	c.opened.Store(open)
	c.mu.Lock()
	c.hold = times.hold
	c.mu.Unlock()
	c.writer.update(func() {
		c.writer.limit, c.writer.period = times.sendHold, times.keepalive
	})
}

// announce starts the announcement of routes. End-of-RIB to a restarted router is delayed until the other
// nodes have had time to connect. The router forwards by stale routes until it has End-of-RIB from all peers
// (RFC 4724, section 4.1), but may count only established ones: FRR would switch to the routes of the first
// node.
func (c *connection) announce() {
	open := c.opened.Load()
	due := time.Now()
	if open.restarting {
		due = due.Add(min(c.peer.ConnectRetryTime, maxEndOfRIBDelay))
	}
	rib := &adjRIBOut{
		encoder: newEncoder(&c.peer, open), carried: open.carried(&c.peer), endOfRIB: due, enhanced: open.enhanced,
		budget: newBudget(refreshBurst, refreshPause),
	}
	// The first announcement counts, too.
	rib.budget.spend(time.Now())
	c.writer.update(func() { c.writer.rib = rib })
}

// release reports why the connection ends, sends the NOTIFICATION and lets the router read it, because
// closing at once could reset the connection.
func (c *connection) release(in input, before state, notify bool, reader io.Reader) {
	notification, r, reason := c.cause(in, before)
	var last []byte
	if notify && notification != nil {
		last = notification.notification()
	}
	if last == nil {
		// The router must not get a FIN after the routes that it has read in part.
		_ = c.tcp.Close()
	}
	if reason != "" {
		if r == rankTransport {
			c.fail(reason)
		} else {
			c.observed.fail(r, reason)
		}
	}
	c.writer.end(last)
	<-c.writer.done
	if last == nil || c.writer.failure() != nil {
		return
	}
	_ = c.tcp.SetReadDeadline(time.Now().Add(finalReadTimeout))
	_, _ = io.Copy(io.Discard, reader)
}

// cause returns the NOTIFICATION of an ending and the reason to report, if any.
func (c *connection) cause(in input, before state) (notification *protocolError, r rank, reason string) {
	var protocol *protocolError
	switch {
	case in.reason != "" || in.notification != nil:
		return in.notification, rankProtocol, in.reason
	case in.event == collisionDump:
		return nil, 0, ""
	case errors.As(in.err, &protocol):
		return protocol, rankProtocol, "the router sent " + protocol.Error()
	case in.event == notificationReceived:
		c.selectRole(in.message)
		return nil, rankProtocol, "received " + describeNotification(in.message) + hintFor(in.message)
	case in.event == holdTimerExpires && before == stateOpenSent:
		return &protocolError{code: codeHoldTimer}, rankTransport, fmt.Sprintf("connected, but received no OPEN for %s: "+
			"ttlSecurityHops of the LBPeer and TTL security of the router must agree", openTimeout)
	case in.event == holdTimerExpires:
		return &protocolError{code: codeHoldTimer}, rankTransport,
			fmt.Sprintf("received no message from the router for %s (Hold Timer Expired)", negotiated(&c.peer, c.opened.Load().holdTime).hold)
	case in.event == sendHoldTimerExpires:
		return nil, rankTransport, "the router does not accept data: the path to it is cut, or the router hangs " +
			"(Send Hold Timer Expired, RFC 9687)"
	case in.event == tcpFails:
		return nil, rankTransport, c.lost(in.err)
	}
	protocol = unexpected(before)
	return protocol, rankProtocol, "the router sent " + protocol.Error()
}

// lost describes the loss of a connection without a NOTIFICATION.
func (c *connection) lost(err error) string {
	switch failure := c.writer.failure(); {
	case errors.Is(err, syscall.ETIMEDOUT) || errors.Is(failure, syscall.ETIMEDOUT):
		return fmt.Sprintf("the router has acknowledged no packet for %s: ttlSecurityHops of the LBPeer and TTL "+
			"security of the router must agree, or the path to it is cut", userTimeout)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return "the router closed the connection without a NOTIFICATION"
	case errors.Is(err, syscall.ECONNRESET):
		return "the connection was reset"
	case failure != nil:
		return "write to the router: " + failure.Error()
	}
	return err.Error()
}

// selectRole sets the node's role for the next connection if the router requires one (RFC 9234). A role is
// not sent otherwise, because a router with another one would reject it.
func (c *connection) selectRole(message []byte) {
	if message[headerLength] == codeOpen && message[headerLength+1] == subcodeRole {
		c.ownRole = complementaryRole(c.role)
	}
}
