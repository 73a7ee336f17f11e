// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"net"
	"sync"
	"time"
)

const (
	// sendHoldTimes is the SendHoldTime (RFC 9687) in hold times. The RFC recommends at least 8 minutes, but
	// a router that reads no withdrawal still forwards packets to this node, so it is FRR's value.
	sendHoldTimes = 2
	// longestSendHold is the SendHoldTime before a hold time is negotiated.
	longestSendHold = 8 * time.Minute
	lastWrite       = time.Second
)

// patience sets the deadlines of a router's connection: SendHoldTime per message (RFC 9687), openTimeout for
// its OPEN, lastWords for closing. The zero value is a new connection.
type patience struct {
	mu     sync.Mutex
	ending bool
	// holdTime is zero until it is negotiated.
	holdTime time.Duration
	heard    time.Time
}

func (p *patience) begin(router *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ending {
		_ = router.SetReadDeadline(time.Now().Add(openTimeout))
	}
}

// opened removes the read deadline, because GoBGP runs the hold timer.
func (p *patience) opened(router *net.TCPConn, holdTime time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holdTime = holdTime
	if !p.ending {
		_ = router.SetReadDeadline(time.Time{})
	}
}

func (p *patience) hear(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = now
}

// silent returns the time since the last message if it has reached the hold time, else zero.
func (p *patience) silent(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if silent := now.Sub(p.heard); p.holdTime > 0 && silent >= p.holdTime {
		return silent
	}
	return 0
}

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
