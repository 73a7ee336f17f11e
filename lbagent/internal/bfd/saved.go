// SPDX-License-Identifier: Apache-2.0

package bfd

import "time"

// Saved is a session that was up when its process ended as planned. The next process goes on
// with it, so that the peer notices nothing (see Session.Stretch).
type Saved struct {
	Parameters    Parameters
	Discriminator uint32
	// Peer is what the peer's last packet said.
	Peer Packet
	// DesiredMinTx is what this end last asked for.
	DesiredMinTx time.Duration
	Since        time.Time
	Losses       uint64
}

// Save returns what the next process needs; false where the session is not up.
func (s *Session) Save() (Saved, bool) {
	if s.state != Up || s.heard.IsZero() {
		return Saved{}, false
	}
	return Saved{
		Parameters: s.parameters, Discriminator: s.discriminator, Peer: s.peer,
		DesiredMinTx: s.desiredMinTx, Since: s.since, Losses: s.losses,
	}, true
}

// Resume returns the session of a process before this one, in state Up. It asks for the
// parameters' intervals again, and waits for the peer as if a packet had just come.
func Resume(saved Saved, random func() float64, now time.Time) *Session {
	s := NewSession(saved.Parameters, saved.Discriminator, random, now)
	s.state, s.since, s.losses = Up, saved.Since, saved.Losses
	s.peer, s.peerDiscriminator, s.heard = saved.Peer, saved.Peer.MyDiscriminator, now
	// The peer may be in the middle of its own end of a Poll Sequence.
	s.peer.Poll, s.peer.Final = false, false
	s.desiredMinTx, s.usedMinTx = saved.DesiredMinTx, saved.DesiredMinTx
	s.Set(saved.Parameters)
	s.urgent = true
	return s
}
