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

// connection is a connection of GoBGP's and one of the router's that belong together.
type connection struct {
	*transport
	speaker, router *net.TCPConn
	// early is the router's OPEN, where it has been read already.
	early []byte

	// patience is how long the router is waited for.
	patience patience
	// write is held while something is written to the router.
	write sync.Mutex
	// broken is why nothing more can be written to the router; nil while it can.
	broken atomic.Pointer[error]
	// told is true after a NOTIFICATION, after which the end is no news.
	told atomic.Bool
	// opened is the router's OPEN; nil before it.
	opened atomic.Pointer[routerOpen]
	// left is true after GoBGP has ended its side, hurried once it is known to do so.
	left, hurried atomic.Bool
}

// carry carries GoBGP's OPEN, and then messages both ways, until one side has ended. It
// returns true where the router ended the connection before its OPEN: GoBGP has not noticed
// this connection then, and waits for the next.
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
		// GoBGP learns that the router has left.
		_ = c.speaker.Close()
	}
	// Its last messages are of no use then, but for the reason that they may tell.
	for message := range queue {
		if kindOf(message) == bgp.BGP_MSG_NOTIFICATION {
			c.tell("could not send", message)
		}
	}
	c.explain()
	return false
}

// explain tells why a connection ended that no NOTIFICATION did: GoBGP says none where it waits
// for the router to take what was said before.
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

// outbound carries GoBGP's messages to the router until the connection has ended. When GoBGP
// has left, the router has a moment to read all of them: closing at once could reset the
// connection before.
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

// abandon ends a connection to which nothing more can be written. Reading may go on for ever
// where the way to the router is cut, so it ends, too: at once where the router took nothing for
// too long, else when what the router had said has been read.
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

// hurry ends a connection that GoBGP leaves, or has left: what is not said yet is of no use but
// for a NOTIFICATION, and the router has a moment to take that.
func (c *connection) hurry() {
	if !c.hurried.Swap(true) {
		c.patience.end(c.router)
		_ = c.speaker.SetReadDeadline(time.Now().Add(lastWords))
	}
}

// pass carries one of GoBGP's messages to the router, as it is to see it.
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

// longestEndOfRIB bounds how late the End-of-RIB is: after a start with nothing to forward by, the
// router may use no route before it.
const longestEndOfRIB = 5 * time.Second

// sendLater sends the End-of-RIB to a router that has restarted once each other node has had time
// to try and connect. The router forwards by the routes of before until it has the End-of-RIB of
// all its sessions (RFC 4724, section 4.1), but it may know of those alone that are there: with
// that of one node FRR goes over to that node's routes.
func (c *connection) sendLater(endOfRIB []byte) {
	c.mu.Lock()
	pause := min(c.peer.ConnectRetryTime, longestEndOfRIB)
	c.mu.Unlock()
	message := slices.Clone(endOfRIB)
	// Where the connection has ended by then, there is nobody to tell.
	time.AfterFunc(pause, func() { _ = c.send(message) })
}

func (c *connection) send(message []byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	c.patience.beforeWrite(c.router)
	_, err := c.router.Write(message)
	return err
}

// tell notes a NOTIFICATION, the first of a connection. One of ours that says that the router
// was silent leaves the routes lost, not withdrawn: the router may have heard nothing. So does
// one that was not sent.
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

// inbound carries to GoBGP what it is to hear of the router's messages. It returns whether there was
// an OPEN among them.
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
		// What is not read waits at the router: TCP holds it up.
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
			// An UPDATE starts the hold timer again, as a KEEPALIVE does (RFC 4271,
			// section 4.4): routers need not send one between UPDATEs.
			pass = encode(bgp.BGP_MSG_KEEPALIVE)
		}
		if _, err := c.speaker.Write(pass); err != nil {
			// GoBGP has left, and said why, if anything, to the router. What is still in
			// the socket is read until the router closes, so that it is not reset.
			_, _ = io.Copy(io.Discard, reader)
			return filter.open != nil
		}
	}
}

// next reads the router's next message.
func (c *connection) next(from io.Reader, buffer []byte) ([]byte, error) {
	if message := c.early; message != nil {
		c.early = nil
		return message, nil
	}
	return readMessage(from, buffer)
}

// refuse ends the connection for an error of reading it: the router's, or its end.
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

// holdTime is the negotiated one: the shorter of both (RFC 4271, section 4.2).
func (c *connection) holdTime(router time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(c.peer.HoldTime, router)
}
