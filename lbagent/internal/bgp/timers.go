// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const (
	// firstPause follows the first failed connection attempt.
	firstPause = 250 * time.Millisecond
	// openTimeout is the HoldTimer before the router's OPEN. It is less than the four minutes of RFC 4271,
	// section 8.2.2, so that the status shows an error.
	openTimeout = 10 * time.Second
	// userTimeout is how long the router may leave octets unacknowledged before the session is
	// established (TCP_USER_TIMEOUT, tcp(7)). A router with TTL security drops all packets with a low TTL.
	userTimeout = 5 * time.Second
	// sendHoldMultiplier is the SendHoldTime (RFC 9687) in hold times. The RFC recommends at least 8 minutes, but
	// a router that reads no withdrawal still forwards packets to this node, so it is FRR's value.
	sendHoldMultiplier = 2
	// maxSendHoldTime is the SendHoldTime before a hold time is negotiated.
	maxSendHoldTime = 8 * time.Minute
	// finalWriteTimeout bounds the last write of a connection, finalReadTimeout the delivery of a NOTIFICATION after it.
	finalWriteTimeout = time.Second
	finalReadTimeout  = 2 * time.Second
	// maxEndOfRIBDelay is for routers restarted without forwarding state, which may use no route before it.
	maxEndOfRIBDelay = 5 * time.Second
)

// timers are the times of an OPEN exchange (RFC 4271, section 4.2).
type timers struct{ hold, keepalive, sendHold time.Duration }

func negotiated(peer *model.Peer, router time.Duration) timers {
	hold := min(peer.HoldTime, router)
	return timers{hold: hold, keepalive: min(peer.KeepaliveTime, hold/3), sendHold: sendHoldMultiplier * hold}
}

// retryPause returns the time between the last connection attempt and the next one. It doubles per attempt
// up to settled, the peer's ConnectRetryTime, so that a restarted router is reached soon and a refusing one
// is not flooded. jitter, from 0 to 1, shortens it by up to a quarter (RFC 4271, section 10).
func retryPause(attempts int, settled time.Duration, jitter float64) time.Duration {
	if attempts == 0 {
		return 0
	}
	pause := firstPause
	for ; attempts > 1 && pause < settled; attempts-- {
		pause *= 2
	}
	return time.Duration(float64(min(pause, settled)) * (1 - jitter/4))
}

// budget permits a burst of events, then one per pause.
type budget struct {
	most  int
	pause time.Duration
	at    time.Time
}

func newBudget(most int, pause time.Duration) *budget { return &budget{most: most, pause: pause} }

// spend returns the delay of the event, which may be negative.
func (b *budget) spend(now time.Time) time.Duration {
	if b.at.Before(now) {
		b.at = now
	}
	ahead := b.at.Add(b.pause).Sub(now) - time.Duration(b.most)*b.pause
	b.at = b.at.Add(b.pause)
	return ahead
}

// take waits until the event may pass and returns the time that it waited.
func (b *budget) take() time.Duration {
	now := time.Now()
	ahead := b.spend(now)
	if ahead <= 0 {
		return 0
	}
	time.Sleep(ahead)
	return time.Since(now)
}
