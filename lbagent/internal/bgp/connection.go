// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

// connection pairs a connection of GoBGP with one of the router.
type connection struct {
	*transport
	speaker, router *net.TCPConn
	early           []byte

	patience patience
	// write serializes writes to the router.
	write sync.Mutex
	// broken is the first write error, or nil.
	broken atomic.Pointer[error]
	// told is true after a NOTIFICATION, so that the close is not reported as well.
	told atomic.Bool
	// opened is nil before the router's OPEN.
	opened atomic.Pointer[routerOpen]
	// left is true after GoBGP has closed its side, hurried once it is expected to.
	left, hurried atomic.Bool
}

// carry relays GoBGP's OPEN, and then messages both ways, until one side closes. It returns true if the
// router closed before its OPEN: GoBGP is unaware of this connection and waits for the next.
func (c *connection) carry(open []byte, queue <-chan []byte) (again bool) {
	ended, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		c.outbound(open, queue, ended)
	}()
	opened := c.inbound()
	_ = c.router.Close()
	close(ended)
	<-finished
	if !opened && !c.left.Load() {
		return true
	}
	if !c.hurried.Load() {
		_ = c.speaker.Close()
	}
	// Queued messages are dropped; a NOTIFICATION among them still has the reason.
	for message := range queue {
		if kindOf(message) == bgp.BGP_MSG_NOTIFICATION {
			c.tell("could not send", message)
		}
	}
	c.explain()
	return false
}

// explain records why a connection ended without a NOTIFICATION, which GoBGP cannot send to a blocked
// router.
func (c *connection) explain() {
	if c.told.Load() {
		return
	}
	if err := c.broken.Load(); err != nil {
		c.fail((*err).Error())
		return
	}
	if silent := c.patience.silent(time.Now()); silent > 0 {
		c.fail(fmt.Sprintf("nothing came from the router for %s (Hold Timer Expired)", silent.Round(time.Second)))
	}
}

// outbound relays GoBGP's messages until the connection has ended. After GoBGP has closed, the router has
// time to read the rest, because closing at once could reset the connection.
func (c *connection) outbound(open []byte, queue <-chan []byte, ended <-chan struct{}) {
	for message, more := open, true; more; {
		if err := c.pass(message); err != nil {
			c.abandon(err)
			return
		}
		select {
		case message, more = <-queue:
		case <-ended:
			return
		}
	}
	c.left.Store(true)
	c.patience.end(c.router)
	_ = c.router.CloseWrite()
}

// abandon ends a connection after a write error. Reading could block forever on a cut path, so the
// connection is closed at once after a write timeout, and otherwise after the received data is read.
func (c *connection) abandon(err error) {
	const words = "the router takes none of our messages: the way to it is cut, or it hangs"
	switch stuck := errors.Is(err, os.ErrDeadlineExceeded); {
	case stuck && c.hurried.Load():
		err = errors.New(words)
	case stuck:
		err = errors.New(words + " (Send Hold Timer Expired, RFC 9687)")
	default:
		err = fmt.Errorf("send to the router: %w", err)
		c.broken.Store(&err)
		c.patience.end(c.router)
		return
	}
	c.broken.Store(&err)
	_ = c.router.Close()
}

// hurry bounds the end of a connection that GoBGP closes: of unsent messages only a NOTIFICATION matters.
func (c *connection) hurry() {
	if !c.hurried.Swap(true) {
		c.patience.end(c.router)
		_ = c.speaker.SetReadDeadline(time.Now().Add(lastWords))
	}
}

func (c *connection) pass(message []byte) error {
	switch kindOf(message) {
	case bgp.BGP_MSG_NOTIFICATION:
		c.tell("sent", message)
	case bgp.BGP_MSG_OPEN:
		if c.observed.wasEstablished() {
			message = withoutRestart(message)
		}
	case bgp.BGP_MSG_UPDATE:
		if c.patience.ended() {
			return nil
		}
		opened := c.opened.Load()
		if opened == nil || !opened.extended {
			message = withoutExtended(message)
		}
		c.sent.Add(1)
		if opened != nil && opened.isRestarting() && isEndOfRIB(message) {
			c.sendLater(message)
			return nil
		}
	}
	return c.send(message)
}

// longestEndOfRIB is for routers restarted without forwarding state, which may use no route before it.
const longestEndOfRIB = 5 * time.Second

// sendLater sends End-of-RIB to a restarted router after the other nodes have had time to connect. The
// router forwards by stale routes until it has End-of-RIB from all peers (RFC 4724, section 4.1), but may
// count only established ones: FRR would switch to the routes of the first node.
func (c *connection) sendLater(endOfRIB []byte) {
	c.mu.Lock()
	pause := min(c.peer.ConnectRetryTime, longestEndOfRIB)
	c.mu.Unlock()
	message := slices.Clone(endOfRIB)
	time.AfterFunc(pause, func() { _ = c.send(message) })
}

func (c *connection) send(message []byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	c.patience.beforeWrite(c.router)
	_, err := c.router.Write(message)
	return err
}

// tell records the first NOTIFICATION of a connection. The routes count as lost, not withdrawn, if it was
// not sent or its code is Hold Timer Expired, because the router may not have received it.
func (c *connection) tell(verb string, message []byte) {
	if c.told.Swap(true) {
		return
	}
	silent := verb == "could not send" || verb == "sent" && len(message) > headerLength && message[headerLength] == bgp.BGP_ERROR_HOLD_TIMER_EXPIRED
	c.mu.Lock()
	c.verdict.lost = silent
	c.mu.Unlock()
	text := verb + " " + describeNotification(message)
	if verb == "received" {
		text += hintFor(message)
	}
	c.fail(text)
}

// inbound relays the router's messages, as filtered, to GoBGP and reports whether an OPEN was received.
func (c *connection) inbound() (opened bool) {
	c.mu.Lock()
	peer := c.peer
	c.mu.Unlock()
	filter := inbound{peer: &peer, self: c.self}
	reader, buffer := bufio.NewReaderSize(c.router, readBuffer), make([]byte, longestLength)
	c.patience.begin(c.router)
	alive, refresh := newBudget(keepalives, keepalivePause), newRefresher(c.speaker)
	flood := newBudget(readAtOnce, readPause)
	for {
		message, err := c.next(reader, buffer)
		var pass []byte
		if err == nil {
			pass, err = filter.check(message)
		}
		if err != nil {
			c.refuse(err)
			return filter.open != nil
		}
		// TCP flow control holds back unread messages.
		c.throttle(flood.take())
		now := time.Now()
		c.patience.hear(now)
		switch kindOf(message) {
		case bgp.BGP_MSG_OPEN:
			c.opened.Store(filter.open)
			c.patience.opened(c.router, c.holdTime(filter.open.holdTime))
		case bgp.BGP_MSG_UPDATE:
			c.received.Add(1)
		case bgp.BGP_MSG_NOTIFICATION:
			c.tell("received", message)
			if filter.open == nil {
				return false
			}
		case bgp.BGP_MSG_ROUTE_REFRESH:
			if pass != nil {
				refresh.ask(pass, now)
				pass = nil
			}
		}
		if pass == nil {
			if !alive.has(now) {
				continue
			}
			// An UPDATE restarts the hold timer like a KEEPALIVE (RFC 4271, section 4.4).
			pass = encode(bgp.BGP_MSG_KEEPALIVE)
		}
		if _, err := c.speaker.Write(pass); err != nil {
			// GoBGP has closed. The socket is read until the router closes, too, so that it is not reset.
			_, _ = io.Copy(io.Discard, reader)
			return filter.open != nil
		}
	}
}

func (c *connection) next(from io.Reader, buffer []byte) ([]byte, error) {
	if message := c.early; message != nil {
		c.early = nil
		return message, nil
	}
	return readMessage(from, buffer)
}

func (c *connection) refuse(err error) {
	var protocol *protocolError
	if errors.As(err, &protocol) {
		c.patience.end(c.router)
		c.told.Store(true)
		c.mu.Lock()
		c.verdict.lost = false
		c.mu.Unlock()
		c.observed.fail("the router sent " + protocol.Error())
		_ = c.send(protocol.notification())
		return
	}
	if c.told.Load() || c.left.Load() || c.broken.Load() != nil {
		return
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.observed.fail(fmt.Sprintf("connected, and no OPEN came within %s: ttlSecurityHops of the LBPeer "+
			"and the router's TTL security must agree", openTimeout))
		return
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the router closed the connection without a NOTIFICATION")
	} else if errors.Is(err, syscall.ECONNRESET) {
		err = errors.New("the connection was reset")
	} else if errors.Is(err, net.ErrClosed) {
		return
	}
	c.fail(err.Error())
}

// holdTime returns the negotiated hold time (RFC 4271, section 4.2).
func (c *connection) holdTime(router time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(c.peer.HoldTime, router)
}
