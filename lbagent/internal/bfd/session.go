// SPDX-License-Identifier: Apache-2.0

package bfd

import "time"

// slowInterval is the minimum transmit interval of a session that is not up (RFC 5880, section 6.8.3).
const slowInterval = time.Second

// Parameters are the parameters of a session.
type Parameters struct {
	// TransmitInterval and ReceiveInterval are the minimum intervals; the slower side decides.
	TransmitInterval, ReceiveInterval time.Duration
	// DetectMultiplier is the number of lost packets after which the peer considers the session down.
	DetectMultiplier uint8
}

// Session is one end of a session (RFC 5880, section 6.8.1). The caller passes every packet to Receive, and
// calls Advance at Next.
type Session struct {
	parameters Parameters
	random     func() float64

	state                            State
	diagnostic                       Diagnostic
	discriminator, peerDiscriminator uint32
	// peer is the peer's last packet, or zero if the detection time expired.
	peer Packet

	// The used values differ from the advertised ones during a Poll Sequence (section 6.8.3).
	desiredMinTx, requiredMinRx time.Duration
	usedMinTx, usedMinRx        time.Duration
	// polling is true during a Poll Sequence, pollPending if another must follow.
	polling, pollPending bool

	// sent is the time of the last periodic packet, jitter the factor of the next interval. urgent skips it.
	sent   time.Time
	jitter float64
	urgent bool
	// lastReceived is the time of the peer's last packet, or zero if the peer is unknown.
	lastReceived time.Time
	// since is the time when the session last entered or left Up.
	since  time.Time
	losses uint64
}

// NewSession returns a session in state Down. The discriminator must be nonzero and unique in this system.
// random returns numbers in [0, 1).
func NewSession(parameters Parameters, discriminator uint32, random func() float64, now time.Time) *Session {
	s := &Session{
		parameters: parameters, random: random, discriminator: discriminator,
		state: Down, since: now,
	}
	s.requiredMinRx, s.usedMinRx = parameters.ReceiveInterval, parameters.ReceiveInterval
	s.slow()
	s.draw()
	s.urgent = true
	return s
}

// Next returns the time at which Advance is due.
func (s *Session) Next() time.Time {
	next := s.nextTransmit()
	if expires := s.expiry(); !expires.IsZero() && (next.IsZero() || expires.Before(next)) {
		next = expires
	}
	return next
}

// IsFromPeer reports whether a packet is from the peer of an established session: only the peer has both
// discriminators. Its address may have changed (RFC 5880, section 6.3).
func (s *Session) IsFromPeer(p Packet) bool {
	return s.state == Up && p.MyDiscriminator == s.peerDiscriminator && p.YourDiscriminator == s.discriminator
}

// Receive processes a packet, and returns the immediate reply, if any (RFC 5880, section 6.8.6).
func (s *Session) Receive(p Packet, now time.Time) (answer Packet, send bool) {
	if s.state == AdminDown {
		return Packet{}, false
	}
	s.peer, s.peerDiscriminator, s.lastReceived = p, p.MyDiscriminator, now
	if s.polling && p.Final {
		s.polling, s.pollPending = s.pollPending, false
		if !s.polling {
			s.usedMinTx, s.usedMinRx = s.desiredMinTx, s.requiredMinRx
		}
	}
	switch {
	case p.State == AdminDown:
		if s.state != Down {
			s.enter(Down, DiagnosticNeighborDown, now)
		}
	case s.state == Down && p.State == Down:
		s.enter(Init, DiagnosticNone, now)
	case s.state == Down && p.State == Init, s.state == Init && p.State >= Init:
		s.enter(Up, DiagnosticNone, now)
	case s.state == Up && p.State == Down:
		s.enter(Down, DiagnosticNeighborDown, now)
	}
	if !p.Poll {
		return Packet{}, false
	}
	answer = s.packet()
	answer.Poll, answer.Final = false, true
	return answer, true
}

// Advance expires the detection time and returns the packet that is due, if any.
func (s *Session) Advance(now time.Time) (p Packet, send bool) {
	if expires := s.expiry(); !expires.IsZero() && !now.Before(expires) {
		s.lastReceived, s.peer, s.peerDiscriminator = time.Time{}, Packet{}, 0
		if s.state == Init || s.state == Up {
			s.enter(Down, DiagnosticDetectionExpired, now)
		}
	}
	due := s.nextTransmit()
	if due.IsZero() || now.Before(due) {
		return Packet{}, false
	}
	s.urgent, s.sent = false, now
	s.draw()
	return s.packet(), true
}

// Set changes the parameters. If the session is up, the peer confirms them by a Poll Sequence; until then the
// more tolerant values are used (RFC 5880, section 6.8.3).
func (s *Session) Set(parameters Parameters) {
	s.parameters = parameters
	minTx := parameters.TransmitInterval
	if s.state != Up {
		minTx = max(minTx, slowInterval)
	}
	s.set(minTx, parameters.ReceiveInterval)
}

// RequestDetectionTime requests a longer detection time from the peer by a Poll Sequence, so that a planned
// restart resets no session. IsConfirmed reports the confirmation. The transmit interval is unchanged; Set
// ends the request.
func (s *Session) RequestDetectionTime(detectionTime time.Duration) {
	if s.state == Up {
		s.set(detectionTime/time.Duration(s.parameters.DetectMultiplier), s.requiredMinRx)
	}
}

// IsConfirmed reports whether the peer confirmed the requested intervals.
func (s *Session) IsConfirmed() bool { return s.state != Up || !s.polling }

func (s *Session) set(minTx, minRx time.Duration) {
	if minTx == s.desiredMinTx && minRx == s.requiredMinRx {
		return
	}
	s.desiredMinTx, s.requiredMinRx = minTx, minRx
	if s.state != Up {
		s.usedMinTx, s.usedMinRx = minTx, minRx
		return
	}
	s.usedMinTx, s.usedMinRx = min(s.usedMinTx, minTx), max(s.usedMinRx, minRx)
	// The Final of the previous sequence does not confirm these.
	s.pollPending = s.polling
	s.polling, s.urgent = true, true
}

// Disable shuts the session down administratively (RFC 5880, section 6.8.16). The caller should keep it for
// another detection time, to inform the peer.
func (s *Session) Disable(now time.Time) {
	if s.state != AdminDown {
		s.enter(AdminDown, DiagnosticAdminDown, now)
	}
}

// PeerDetectionTime returns the time after which the peer declares this end down if no packet arrives.
func (s *Session) PeerDetectionTime() time.Duration {
	return time.Duration(s.parameters.DetectMultiplier) * max(s.desiredMinTx, s.peer.RequiredMinRx)
}

// DetectionTime returns this end's detection time (RFC 5880, section 6.8.4), or zero if the peer is unknown.
func (s *Session) DetectionTime() time.Duration {
	return time.Duration(s.peer.DetectMultiplier) * max(s.usedMinRx, s.peer.DesiredMinTx)
}

// TransmitInterval returns the interval of sent packets before jitter, or zero if none are sent (RFC 5880,
// sections 6.8.2 and 6.8.7).
func (s *Session) TransmitInterval() time.Duration {
	if s.peerDiscriminator == 0 {
		return s.usedMinTx
	}
	demanded := s.peer.Demand && s.state == Up && s.peer.State == Up && !s.polling
	if s.peer.RequiredMinRx == 0 || demanded {
		return 0
	}
	return max(s.usedMinTx, s.peer.RequiredMinRx)
}

// State returns the state of this end.
func (s *Session) State() State { return s.state }

// Discriminator returns the discriminator of this end.
func (s *Session) Discriminator() uint32 { return s.discriminator }

// PeerState returns the state in the peer's last packet, or Down without one.
func (s *Session) PeerState() State {
	if s.lastReceived.IsZero() {
		return Down
	}
	return s.peer.State
}

// Diagnostic returns the reason why the session last left Up.
func (s *Session) Diagnostic() Diagnostic { return s.diagnostic }

// PeerDiagnostic returns the diagnostic of the peer's last packet.
func (s *Session) PeerDiagnostic() Diagnostic { return s.peer.Diagnostic }

// Since returns the time when the session last entered or left Up.
func (s *Session) Since() time.Time { return s.since }

// Losses returns how often the session failed, that is, left Up without an administrative shutdown of either
// end (RFC 5882, section 3.2).
func (s *Session) Losses() uint64 { return s.losses }

func (s *Session) enter(state State, diagnostic Diagnostic, now time.Time) {
	was := s.state
	s.state, s.urgent = state, true
	if state != Init {
		s.diagnostic = diagnostic
	}
	if was == Up || state == Up {
		s.since = now
	}
	if was == Up && state == Down && s.PeerState() != AdminDown {
		s.losses++
	}
	s.polling, s.pollPending = false, false
	s.requiredMinRx, s.usedMinRx = s.parameters.ReceiveInterval, s.parameters.ReceiveInterval
	if state != Up {
		s.slow()
		return
	}
	if s.desiredMinTx != s.parameters.TransmitInterval {
		s.set(s.parameters.TransmitInterval, s.parameters.ReceiveInterval)
	}
}

func (s *Session) slow() {
	s.desiredMinTx = max(s.parameters.TransmitInterval, slowInterval)
	s.usedMinTx = s.desiredMinTx
}

// draw chooses the jitter of the next interval: up to a quarter less, at least a tenth less with a multiplier
// of 1 (RFC 5880, section 6.8.7).
func (s *Session) draw() {
	most := 1.0
	if s.parameters.DetectMultiplier == 1 {
		most = 0.9
	}
	s.jitter = 0.75 + (most-0.75)*s.random()
}

// nextTransmit returns the time of the next packet; zero for none.
func (s *Session) nextTransmit() time.Time {
	interval := s.TransmitInterval()
	switch {
	case interval == 0:
		return time.Time{}
	case s.urgent && s.sent.IsZero():
		return s.since
	case s.urgent:
		return s.sent
	}
	return s.sent.Add(time.Duration(float64(interval) * s.jitter))
}

func (s *Session) expiry() time.Time {
	if s.lastReceived.IsZero() || s.state == AdminDown {
		return time.Time{}
	}
	return s.lastReceived.Add(s.DetectionTime())
}

func (s *Session) packet() Packet {
	return Packet{
		Diagnostic: s.diagnostic, State: s.state, Poll: s.polling,
		// Forwarding and BFD are independent of the agent (RFC 5882, section 4.3.2).
		Independent:      true,
		DetectMultiplier: s.parameters.DetectMultiplier,
		MyDiscriminator:  s.discriminator, YourDiscriminator: s.peerDiscriminator,
		DesiredMinTx: s.desiredMinTx, RequiredMinRx: s.requiredMinRx,
	}
}
