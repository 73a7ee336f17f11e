// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"testing"
	"time"
)

const ms = time.Millisecond

var (
	epoch    = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	standard = Parameters{TransmitInterval: 100 * ms, ReceiveInterval: 100 * ms, DetectMultiplier: 3}
)

func full() float64 { return 1 } // no jitter

// from returns a packet of the peer, whose discriminator is 2; ours is 1.
func from(state State) Packet {
	p := Packet{
		State: state, DetectMultiplier: 3, MyDiscriminator: 2, YourDiscriminator: 1,
		DesiredMinTx: 100 * ms, RequiredMinRx: 100 * ms,
	}
	if state == Down {
		p.YourDiscriminator = 0
	}
	return p
}

// in returns a session in a state reached by the peer's packets.
func in(t *testing.T, state State) *Session {
	t.Helper()
	s := NewSession(standard, 1, full, epoch)
	if state == AdminDown {
		s.Disable(epoch)
	}
	if state >= Init {
		s.Receive(from(Down), epoch)
	}
	if state == Up {
		s.Receive(from(Up), epoch)
		settle(s, epoch)
	}
	if s.State() != state {
		t.Fatalf("state %s, want %s", s.State(), state)
	}
	return s
}

// settle completes the Poll Sequence after Up.
func settle(s *Session, now time.Time) {
	s.Advance(now)
	final := from(Up)
	final.Final = true
	s.Receive(final, now)
}

// State transitions of RFC 5880, sections 6.2 and 6.8.6: state, received state, next state.
func TestTransitions(t *testing.T) {
	for _, test := range []struct {
		state, received, want State
		diagnostic            Diagnostic
		losses                uint64
	}{
		{Down, AdminDown, Down, DiagnosticNone, 0},
		{Down, Down, Init, DiagnosticNone, 0},
		{Down, Init, Up, DiagnosticNone, 0},
		{Down, Up, Down, DiagnosticNone, 0},
		{Init, AdminDown, Down, DiagnosticNeighborDown, 0},
		{Init, Down, Init, DiagnosticNone, 0},
		{Init, Init, Up, DiagnosticNone, 0},
		{Init, Up, Up, DiagnosticNone, 0},
		{Up, AdminDown, Down, DiagnosticNeighborDown, 0},
		{Up, Down, Down, DiagnosticNeighborDown, 1},
		{Up, Init, Up, DiagnosticNone, 0},
		{Up, Up, Up, DiagnosticNone, 0},
		{AdminDown, Down, AdminDown, DiagnosticAdminDown, 0},
		{AdminDown, Init, AdminDown, DiagnosticAdminDown, 0},
		{AdminDown, Up, AdminDown, DiagnosticAdminDown, 0},
	} {
		s := in(t, test.state)
		s.Receive(from(test.received), epoch.Add(ms))
		if s.State() != test.want || s.Diagnostic() != test.diagnostic || s.Losses() != test.losses {
			t.Errorf("%s receives %s: state %s, diagnostic %q, %d losses; want %s, %q, %d", test.state, test.received,
				s.State(), s.Diagnostic(), s.Losses(), test.want, test.diagnostic, test.losses)
		}
	}
}

// The session is down exactly at the end of the detection time.
func TestDetection(t *testing.T) {
	for _, state := range []State{Init, Up} {
		s := in(t, state)
		s.Advance(epoch.Add(300*ms - time.Microsecond))
		if s.State() != state {
			t.Fatalf("%s: state %s before the detection time", state, s.State())
		}
		p, send := s.Advance(epoch.Add(300 * ms))
		if s.State() != Down || s.Diagnostic() != DiagnosticDetectionExpired {
			t.Errorf("%s: %s, %q", state, s.State(), s.Diagnostic())
		}
		if !send || p.State != Down || p.YourDiscriminator != 0 || p.DesiredMinTx != time.Second {
			t.Errorf("%s: packet to the peer: %t, %+v", state, send, p)
		}
		if want := map[State]uint64{Init: 0, Up: 1}[state]; s.Losses() != want {
			t.Errorf("%s: %d losses, want %d", state, s.Losses(), want)
		}
	}
}

// The slower side decides both times (RFC 5880, sections 6.8.2 to 6.8.4).
func TestNegotiation(t *testing.T) {
	for name, test := range map[string]struct {
		ours                Parameters
		change              func(*Packet)
		transmit, detection time.Duration
	}{
		"equal":         {standard, func(*Packet) {}, 100 * ms, 300 * ms},
		"slow receiver": {standard, func(p *Packet) { p.RequiredMinRx = 400 * ms }, 400 * ms, 300 * ms},
		"slow sender":   {standard, func(p *Packet) { p.DesiredMinTx = time.Second }, 100 * ms, 3 * time.Second},
		"slow local receiver": {Parameters{TransmitInterval: 100 * ms, ReceiveInterval: 500 * ms, DetectMultiplier: 9},
			func(*Packet) {}, 100 * ms, 1500 * ms},
		"multiplier of the peer":      {standard, func(p *Packet) { p.DetectMultiplier = 5 }, 100 * ms, 500 * ms},
		"required receive interval 0": {standard, func(p *Packet) { p.RequiredMinRx = 0 }, 0, 300 * ms},
		"demand mode":                 {standard, func(p *Packet) { p.Demand = true }, 0, 300 * ms},
		"demand mode, not up":         {standard, func(p *Packet) { p.Demand, p.State = true, Init }, 100 * ms, 300 * ms},
	} {
		s := NewSession(test.ours, 1, full, epoch)
		s.Receive(from(Down), epoch)
		s.Receive(from(Up), epoch)
		p := from(Up)
		test.change(&p)
		p.Final = true
		s.Receive(p, epoch)
		if s.TransmitInterval() != test.transmit || s.DetectionTime() != test.detection {
			t.Errorf("%s: transmit interval %s, detection time %s; want %s, %s",
				name, s.TransmitInterval(), s.DetectionTime(), test.transmit, test.detection)
		}
	}
}

// Packets to an absent peer are sent once a second.
func TestSlowWhileDown(t *testing.T) {
	s := NewSession(standard, 1, full, epoch)
	sent := 0
	for now := epoch; now.Before(epoch.Add(10 * time.Second)); now = now.Add(10 * ms) {
		if p, send := s.Advance(now); send {
			sent++
			if p.State != Down || p.YourDiscriminator != 0 || p.DesiredMinTx < time.Second || p.MinEchoRx != 0 || p.Demand {
				t.Fatalf("sent packet %+v", p)
			}
		}
	}
	if sent != 10 {
		t.Errorf("%d packets sent in 10 s, want 10", sent)
	}
}

func TestJitter(t *testing.T) {
	for multiplier, most := range map[uint8]float64{1: 0.9, 2: 1, 3: 1} {
		for _, random := range []float64{0, 0.5, 0.999999} {
			parameters := standard
			parameters.DetectMultiplier = multiplier
			s := NewSession(parameters, 1, func() float64 { return random }, epoch)
			s.Advance(epoch)
			wait := s.Next().Sub(epoch).Seconds()
			if want := 0.75 + (most-0.75)*random; wait < want-1e-6 || wait > want+1e-6 {
				t.Errorf("multiplier %d, random %v: wait of %v intervals, want %v", multiplier, random, wait, want)
			}
		}
	}
}

// A Poll is answered immediately in every state, without setting Poll in the reply.
func TestPollIsAnswered(t *testing.T) {
	for _, state := range []State{Down, Init, Up} {
		s := in(t, state)
		p := from(Up)
		p.Poll = true
		answer, send := s.Receive(p, epoch)
		if !send || !answer.Final || answer.Poll || answer.MyDiscriminator != 1 || answer.YourDiscriminator != 2 {
			t.Errorf("%s: %t %+v", state, send, answer)
		}
	}
	p := from(Up)
	p.Poll = true
	if _, send := in(t, AdminDown).Receive(p, epoch); send {
		t.Error("AdminDown: the session replied")
	}
}

// Slower intervals apply after the peer has confirmed them, faster ones immediately unless a detection
// could fail (RFC 5880, section 6.8.3).
func TestChange(t *testing.T) {
	s := in(t, Up)
	s.Set(Parameters{TransmitInterval: 200 * ms, ReceiveInterval: 50 * ms, DetectMultiplier: 3})
	if s.TransmitInterval() != 100*ms || s.DetectionTime() != 300*ms || s.IsConfirmed() {
		t.Errorf("before confirmation: transmit interval %s, detection time %s", s.TransmitInterval(), s.DetectionTime())
	}
	p, send := s.Advance(epoch)
	if !send || !p.Poll || p.DesiredMinTx != 200*ms || p.RequiredMinRx != 50*ms {
		t.Errorf("sent %t, packet %+v, want a Poll", send, p)
	}
	final := from(Up)
	final.Final, final.DesiredMinTx = true, 50*ms
	s.Receive(final, epoch)
	if s.TransmitInterval() != 200*ms || s.DetectionTime() != 150*ms || !s.IsConfirmed() {
		t.Errorf("after confirmation: transmit interval %s, detection time %s", s.TransmitInterval(), s.DetectionTime())
	}
	s.Set(standard)
	if s.TransmitInterval() != 100*ms {
		t.Errorf("after a decrease: transmit interval %s", s.TransmitInterval())
	}
}

// A Final of a previous Poll Sequence confirms no newer values.
func TestChangeDuringPoll(t *testing.T) {
	s := in(t, Up)
	s.Set(Parameters{TransmitInterval: 200 * ms, ReceiveInterval: 100 * ms, DetectMultiplier: 3})
	s.Set(Parameters{TransmitInterval: 400 * ms, ReceiveInterval: 100 * ms, DetectMultiplier: 3})
	for i, want := range []time.Duration{100 * ms, 400 * ms} {
		final := from(Up)
		final.Final = true
		s.Receive(final, epoch)
		if s.TransmitInterval() != want {
			t.Errorf("after packet %d: transmit interval %s, want %s", i+1, s.TransmitInterval(), want)
		}
	}
}

// In demand mode polls are still answered, and our Poll Sequences sent.
func TestDemand(t *testing.T) {
	s := in(t, Up)
	demand := from(Up)
	demand.Demand = true
	s.Receive(demand, epoch)
	if _, send := s.Advance(epoch.Add(250 * ms)); send {
		t.Error("a periodic packet was sent, want none")
	}
	s.Set(Parameters{TransmitInterval: 50 * ms, ReceiveInterval: 100 * ms, DetectMultiplier: 3})
	if p, send := s.Advance(epoch.Add(251 * ms)); !send || !p.Poll {
		t.Error("no Poll was sent after the change")
	}
	s.Advance(epoch.Add(time.Second))
	if s.State() != Down {
		t.Errorf("silent peer in demand mode: state %s", s.State())
	}
}

func TestDisable(t *testing.T) {
	s := in(t, Up)
	s.Disable(epoch)
	p, send := s.Advance(epoch)
	if !send || p.State != AdminDown || p.Diagnostic != DiagnosticAdminDown || s.Losses() != 0 {
		t.Errorf("sent %t, packet %+v, %d losses", send, p, s.Losses())
	}
	if _, send := s.Advance(epoch.Add(time.Second)); !send {
		t.Error("AdminDown was sent only once")
	}
}

// A resumed session continues: the peer sees Up and no poll beyond that for the intervals.
func TestResume(t *testing.T) {
	s := in(t, Up)
	s.RequestDetectionTime(30 * time.Second)
	p, _ := s.Advance(epoch)
	if !p.Poll || p.DesiredMinTx != 10*time.Second || s.TransmitInterval() != 100*ms {
		t.Fatalf("after an increase: packet %+v, transmit interval %s", p, s.TransmitInterval())
	}
	final := from(Up)
	final.Final = true
	s.Receive(final, epoch)
	saved, ok := s.Save()
	if !ok || !s.IsConfirmed() {
		t.Fatalf("saved = %t, confirmed = %t", ok, s.IsConfirmed())
	}
	later := epoch.Add(5 * time.Second)
	s = Resume(saved, full, later)
	p, send := s.Advance(later)
	if !send || p.State != Up || !p.Poll || p.DesiredMinTx != 100*ms || p.YourDiscriminator != 2 || p.MyDiscriminator != 1 {
		t.Errorf("after the resume: sent %t, packet %+v", send, p)
	}
	if s.TransmitInterval() != 100*ms || !s.Since().Equal(epoch) {
		t.Errorf("after the resume: transmit interval %s, since %s", s.TransmitInterval(), s.Since())
	}
	s.Advance(later.Add(300 * ms))
	if s.State() != Down || s.Losses() != 1 {
		t.Errorf("peer that died during the restart: state %s, %d losses", s.State(), s.Losses())
	}
	for _, state := range []State{AdminDown, Down, Init} {
		if _, ok := in(t, state).Save(); ok {
			t.Errorf("Save succeeded in state %s", state)
		}
	}
}
