// SPDX-License-Identifier: Apache-2.0

package bfd

import "time"

// Saved is an established session for the next process, which continues it unnoticed (see Session.RequestDetectionTime).
type Saved struct {
	Parameters    Parameters
	Discriminator uint32
	// Peer is the peer's last packet.
	Peer Packet
	// DesiredMinTx is the last requested interval.
	DesiredMinTx time.Duration
	Since        time.Time
	Losses       uint64
}

// Save returns the state for the next process; false unless the session is up.
func (s *Session) Save() (Saved, bool) {
	if s.state != Up || s.lastReceived.IsZero() {
		return Saved{}, false
	}
	return Saved{
		Parameters: s.parameters, Discriminator: s.discriminator, Peer: s.peer,
		DesiredMinTx: s.desiredMinTx, Since: s.since, Losses: s.losses,
	}, true
}

// Resume returns the session of a previous process in state Up with a new detection time.
func Resume(saved Saved, random func() float64, now time.Time) *Session {
	s := NewSession(saved.Parameters, saved.Discriminator, random, now)
	s.state, s.since, s.losses = Up, saved.Since, saved.Losses
	s.peer, s.peerDiscriminator, s.lastReceived = saved.Peer, saved.Peer.MyDiscriminator, now
	// The peer may be in a Poll Sequence.
	s.peer.Poll, s.peer.Final = false, false
	s.desiredMinTx, s.usedMinTx = saved.DesiredMinTx, saved.DesiredMinTx
	s.Set(saved.Parameters)
	s.urgent = true
	return s
}
