// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"net"
	"sync"
	"time"
)

const (
	// sendHoldTimes is after how many hold times a router that takes nothing is given up (the
	// SendHoldTime of RFC 9687). The RFC recommends 8 minutes at least; but a router that takes no
	// withdrawal goes on sending packets to this node, so it is as short as FRR has it.
	sendHoldTimes = 2
	// longestSendHold is the SendHoldTime before the router's OPEN, and of a session without a
	// hold time.
	longestSendHold = 8 * time.Minute
	// lastWrite is how long the router has for a message of a connection that ends.
	lastWrite = time.Second
)

// patience sets the deadlines of a connection with a router: each message has to be taken within
// the SendHoldTime (RFC 9687), the OPEN has to come within openTimeout, and a connection that ends
// has lastWords left. The zero value is that of a new connection.
type patience struct {
	mu     sync.Mutex
	ending bool
	// holdTime is the negotiated one; zero before the router's OPEN, and where there is none.
	holdTime time.Duration
	// heard is when the last message came.
	heard time.Time
}

// begin waits for the router's OPEN.
func (p *patience) begin(router *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ending {
		_ = router.SetReadDeadline(time.Now().Add(openTimeout))
	}
}

// opened waits for the router for ever: GoBGP has the hold timer.
func (p *patience) opened(router *net.TCPConn, holdTime time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holdTime = holdTime
	if !p.ending {
		_ = router.SetReadDeadline(time.Time{})
	}
}

// hear notes that a message came.
func (p *patience) hear(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = now
}

// silent is how long nothing came, where that is the hold time at least; else zero.
func (p *patience) silent(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if silent := now.Sub(p.heard); p.holdTime > 0 && silent >= p.holdTime {
		return silent
	}
	return 0
}

// beforeWrite bounds how long the next message may take.
func (p *patience) beforeWrite(router *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit := longestSendHold
	switch {
	case p.ending:
		limit = lastWrite
	case p.holdTime > 0:
		limit = sendHoldTimes * p.holdTime
	}
	_ = router.SetWriteDeadline(time.Now().Add(limit))
}

// end leaves the connection its last words, in both directions. A message that waits for the
// router has to be taken now.
func (p *patience) end(router *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending {
		return
	}
	p.ending = true
	now := time.Now()
	_ = router.SetWriteDeadline(now.Add(lastWrite))
	_ = router.SetReadDeadline(now.Add(lastWords))
}

func (p *patience) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ending
}
