// SPDX-License-Identifier: Apache-2.0

package bfd

import "time"

// slowInterval is the least transmit interval of a session that is not up (RFC 5880, section
// 6.8.3).
const slowInterval = time.Second

// Parameters of a session.
type Parameters struct {
	// TransmitInterval is the shortest interval at which packets are sent, ReceiveInterval
	// the shortest at which they may come. The slower side decides.
	TransmitInterval, ReceiveInterval time.Duration
	// DetectMultiplier is how many packets of ours the peer misses before it takes the
	// session for lost; at least 1.
	DetectMultiplier uint8
}

// Session is one end of a session (RFC 5880, section 6.8.1). Its owner calls Receive with
// every packet, and Advance when Next is due.
type Session struct {
	parameters Parameters
	random     func() float64

	state                            State
	diagnostic                       Diagnostic
	discriminator, peerDiscriminator uint32
	// peer is what the peer's last packet said; zero after a detection time without one.
	peer Packet

	// desiredMinTx and requiredMinRx are what packets say. What is used meanwhile differs
	// from them while a Poll Sequence waits for its end (section 6.8.3).
	desiredMinTx, requiredMinRx time.Duration
	usedMinTx, usedMinRx        time.Duration
	// polling is true during a Poll Sequence, pollAgain where another must follow it.
	polling, pollAgain bool

	// sent is when the last periodic packet was sent, jitter the factor of the interval up to
	// the next. urgent is set when a packet must not wait.
	sent   time.Time
	jitter float64
	urgent bool
	// heard is when the peer's last packet came; zero where the peer is not known.
	heard time.Time
	// since is when the session last entered or left Up.
	since time.Time
	// losses counts how often Up was left without either side's administrator asking for it.
	losses uint64
}

// NewSession returns a session in state Down. The discriminator is not zero and no other
// session of this system has it. random returns numbers in [0, 1).
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

// Next is when Advance must be called.
func (s *Session) Next() time.Time {
	next := s.transmitAt()
	if expires := s.expiresAt(); !expires.IsZero() && (next.IsZero() || expires.Before(next)) {
		next = expires
	}
	return next
}

// Proves reports whether a packet is that of the peer with which the session is up: it has both
// discriminators, which only the two know. The peer may have another address by then (RFC 5880,
// section 6.3).
func (s *Session) Proves(p Packet) bool {
	return s.state == Up && p.MyDiscriminator == s.peerDiscriminator && p.YourDiscriminator == s.discriminator
}

// Receive takes a packet that was found to be for this session. It returns the answer that
// must be sent at once, if any (RFC 5880, section 6.8.6).
func (s *Session) Receive(p Packet, now time.Time) (answer Packet, send bool) {
	if s.state == AdminDown {
		return Packet{}, false
	}
	s.peer, s.peerDiscriminator, s.heard = p, p.MyDiscriminator, now
	if s.polling && p.Final {
		s.polling, s.pollAgain = s.pollAgain, false
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

// Advance does what is due: it notices that the detection time is over, and returns the
// packet to be sent, if any.
func (s *Session) Advance(now time.Time) (p Packet, send bool) {
	if expires := s.expiresAt(); !expires.IsZero() && !now.Before(expires) {
		s.heard, s.peer, s.peerDiscriminator = time.Time{}, Packet{}, 0
		if s.state == Init || s.state == Up {
			s.enter(Down, DiagnosticDetectionExpired, now)
		}
	}
	due := s.transmitAt()
	if due.IsZero() || now.Before(due) {
		return Packet{}, false
	}
	s.urgent, s.sent = false, now
	s.draw()
	return s.packet(), true
}

// Set changes the parameters. While the session is up the peer is asked to confirm them by a
// Poll Sequence; until then what is slower to fail is used (RFC 5880, section 6.8.3).
func (s *Session) Set(parameters Parameters) {
	s.parameters = parameters
	minTx := parameters.TransmitInterval
	if s.state != Up {
		minTx = max(minTx, slowInterval)
	}
	s.set(minTx, parameters.ReceiveInterval)
}

// Stretch asks the peer by a Poll Sequence to wait for so long before it takes the session for
// lost. So a process that is replaced as planned loses none. Settled says when the peer
// agreed. Packets are sent as before; Set ends it.
func (s *Session) Stretch(detectionTime time.Duration) {
	if s.state == Up {
		s.set(detectionTime/time.Duration(s.parameters.DetectMultiplier), s.requiredMinRx)
	}
}

// Settled reports whether the peer knows the intervals that this end asks for.
func (s *Session) Settled() bool { return s.state != Up || !s.polling }

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
	// A Final that answers the sequence before does not confirm these.
	s.pollAgain = s.polling
	s.polling, s.urgent = true, true
}

// Disable takes the session down administratively (RFC 5880, section 6.8.16). It should be
// kept for a detection time more, so that the peer learns of it.
func (s *Session) Disable(now time.Time) {
	if s.state != AdminDown {
		s.enter(AdminDown, DiagnosticAdminDown, now)
	}
}

// PeerDetectionTime is how long the peer waits for a packet.
func (s *Session) PeerDetectionTime() time.Duration {
	return time.Duration(s.parameters.DetectMultiplier) * max(s.desiredMinTx, s.peer.RequiredMinRx)
}

// DetectionTime is how long this end waits for a packet (RFC 5880, section 6.8.4); zero
// where none of the peer is known.
func (s *Session) DetectionTime() time.Duration {
	return time.Duration(s.peer.DetectMultiplier) * max(s.usedMinRx, s.peer.DesiredMinTx)
}

// TransmitInterval is the interval at which packets are sent, before jitter; zero where none
// are (RFC 5880, sections 6.8.2 and 6.8.7).
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

// State of this end.
func (s *Session) State() State { return s.state }

// Discriminator of this end.
func (s *Session) Discriminator() uint32 { return s.discriminator }

// PeerState is that of the peer's last packet; Down where there is none.
func (s *Session) PeerState() State {
	if s.heard.IsZero() {
		return Down
	}
	return s.peer.State
}

// Diagnostic is why the session last left Up.
func (s *Session) Diagnostic() Diagnostic { return s.diagnostic }

// PeerDiagnostic is that of the peer's last packet.
func (s *Session) PeerDiagnostic() Diagnostic { return s.peer.Diagnostic }

// Since is when the session last entered or left Up.
func (s *Session) Since() time.Time { return s.since }

// Losses counts how often the session failed: it left Up, and neither end was taken down by
// its administrator (RFC 5882, section 3.2).
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
	s.polling, s.pollAgain = false, false
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

// draw chooses the jitter of the next interval: up to a quarter is taken off, with a
// multiplier of 1 at least a tenth (RFC 5880, section 6.8.7).
func (s *Session) draw() {
	most := 1.0
	if s.parameters.DetectMultiplier == 1 {
		most = 0.9
	}
	s.jitter = 0.75 + (most-0.75)*s.random()
}

// transmitAt is when the next packet is due; zero where none is.
func (s *Session) transmitAt() time.Time {
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

func (s *Session) expiresAt() time.Time {
	if s.heard.IsZero() || s.state == AdminDown {
		return time.Time{}
	}
	return s.heard.Add(s.DetectionTime())
}

func (s *Session) packet() Packet {
	return Packet{
		Diagnostic: s.diagnostic, State: s.state, Poll: s.polling,
		// Forwarding and BFD go on while the agent is away (RFC 5882, section 4.3.2).
		Independent:      true,
		DetectMultiplier: s.parameters.DetectMultiplier,
		MyDiscriminator:  s.discriminator, YourDiscriminator: s.peerDiscriminator,
		DesiredMinTx: s.desiredMinTx, RequiredMinRx: s.requiredMinRx,
	}
}
