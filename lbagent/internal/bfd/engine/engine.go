// SPDX-License-Identifier: Apache-2.0

// Package engine sends and receives the packets of BFD sessions (RFC 5881, RFC 5883).
//
// A single thread reads all queued packets before it processes timeouts, so that a process that was not
// scheduled for a while does not consider peers down whose packets arrived meanwhile.
package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
)

const (
	// batch bounds the datagrams read per socket before timeouts are processed. A full batch is followed by a
	// pause, because this real-time thread must not occupy a CPU during a flood. MaxSessions send fewer in 10
	// ms.
	batch  = 64
	pause  = time.Millisecond
	reopen = 2 * time.Second
)

var one = binary.NativeEndian.AppendUint64(nil, 1)

// MaxSessions is the maximum number of sessions of a node.
const MaxSessions = 256

// Engine runs the sessions of a node. The thread of Run owns all fields except the atomic ones: it must not
// wait for a lock, whose holder may wait for a CPU.
type Engine struct {
	// wake interrupts the thread's poll; reportFD signals a changed report. Both are eventfds.
	wake, reportFD int
	reportEvent    *os.File

	wanted   atomic.Pointer[control.Want]
	stretch  atomic.Int64
	report   atomic.Pointer[control.Report]
	handover atomic.Pointer[handover]

	have          *control.Want
	sessions      map[string]*session
	closing       map[uint32]*session
	discriminator map[uint32]*session
	remote        map[remote]*session
	listeners     map[kind]*listener
	// version is incremented when the listeners' admission changes.
	version uint64
	// refused are configured sessions that cannot be created, with the reason.
	refused      []control.Session
	discarded    map[string]uint64
	longestDelay time.Duration
	// priority is the reason why the thread lacks real-time priority, or nil.
	priority  error
	stretched bool
	// changed is true if the report must be published, published the time of the last one.
	changed   bool
	published time.Time
}

type session struct {
	*bfd.Session
	peer  control.Peer
	fd    int
	scope uint32
	// problem is the error of the last transmission; retry is the time of the next attempt to open the socket.
	problem string
	retry   time.Time
	// until is the time at which a session in shutdown is deleted, else zero.
	until time.Time
	// reported is the last reported state.
	reported observed
	sent     time.Time
}

type observed struct {
	state, peer         bfd.State
	transmit, detection time.Duration
	problem             string
}

func (s *session) observed() observed {
	return observed{s.State(), s.PeerState(), s.TransmitInterval(), s.DetectionTime(), s.problem}
}

// remote is the key of a packet without our discriminator (RFC 5880, section 6.3).
type remote struct {
	address  netip.Addr
	scope    uint32
	multihop bool
}

// New returns an Engine without sessions.
func New() (*Engine, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	reportFD, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	e := &Engine{
		wake: wake, reportFD: reportFD, reportEvent: os.NewFile(uintptr(reportFD), "report"),
		sessions: map[string]*session{}, closing: map[uint32]*session{},
		discriminator: map[uint32]*session{}, remote: map[remote]*session{},
		listeners: map[kind]*listener{}, discarded: map[string]uint64{},
	}
	e.report.Store(&control.Report{})
	return e, nil
}

// Set configures the sessions. Sessions of unchanged and renamed peers continue.
func (e *Engine) Set(want control.Want) {
	e.wanted.Store(&want)
	e.interrupt()
}

// Report returns the current report, which must not be modified.
func (e *Engine) Report() *control.Report { return e.report.Load() }

// AwaitReport blocks until the report may have changed or Close is called.
func (e *Engine) AwaitReport() error {
	var count [8]byte
	_, err := e.reportEvent.Read(count[:])
	return err
}

// Close unblocks AwaitReport.
func (e *Engine) Close() error { return e.reportEvent.Close() }

func (e *Engine) set(want *control.Want, now time.Time) {
	sessions := map[string]*session{}
	for _, s := range e.sessions {
		if peer := successor(want.Peers, s.peer); peer != "" {
			sessions[peer] = s
		} else {
			e.shutDown(s, now)
		}
	}
	e.sessions = sessions
	e.refused = nil
	for _, peer := range want.Peers {
		err := check(peer)
		if s, ok := e.sessions[peer.Name]; ok && err == nil {
			s.peer = peer
			s.Session.Set(peer.Parameters)
			continue
		}
		switch {
		case err != nil:
		case len(e.sessions) >= MaxSessions:
			err = fmt.Errorf("a node supports at most %d BFD sessions", MaxSessions)
		default:
			err = e.add(peer, bfd.NewSession(peer.Parameters, e.free(), rand.Float64, now))
		}
		if err != nil {
			e.refused = append(e.refused, control.Session{
				Peer: peer.Name, Address: peer.Address, State: bfd.Down, PeerState: bfd.Down, Since: now, Message: err.Error(),
			})
		}
	}
	e.changed = true
	e.version++
}

func check(peer control.Peer) error {
	if peer.Parameters.DetectMultiplier == 0 || !peer.Address.IsValid() || peer.Parameters.TransmitInterval <= 0 {
		return errors.New("the address, the multiplier or an interval is missing")
	}
	return nil
}

// successor returns the name of the peer that continues a session: the same one, or a renamed one. It returns
// "" if there is none.
func successor(peers []control.Peer, of control.Peer) (name string) {
	for _, peer := range peers {
		if onlyParametersDiffer(peer, of) && (name == "" || peer.Name == of.Name) {
			name = peer.Name
		}
	}
	return name
}

// onlyParametersDiffer reports whether only parameters differ, so that the session can continue.
func onlyParametersDiffer(a, b control.Peer) bool {
	return a.Address == b.Address && a.Source == b.Source && a.Multihop == b.Multihop
}

func (e *Engine) add(peer control.Peer, state *bfd.Session) error {
	s := &session{Session: state, peer: peer, fd: -1}
	s.reported = s.observed()
	scope, err := scopeOf(peer.Address)
	if err != nil {
		return err
	}
	s.scope = scope
	key := s.remote()
	switch other, taken := e.remote[key]; {
	case taken && other.until.IsZero():
		return fmt.Errorf("%s has a session for LBPeer %s", peer.Address, other.peer.Name)
	case taken:
		// The session in shutdown would continue to report Down to the peer.
		e.remove(other)
	}
	e.sessions[peer.Name], e.remote[key], e.discriminator[s.Discriminator()] = s, s, s
	e.version++
	return nil
}

func (s *session) remote() remote {
	return remote{s.peer.Address.WithZone(""), s.scope, s.peer.Multihop}
}

func (s *session) kind() kind { return kind{s.peer.Address.Is6(), s.peer.Multihop} }

// shutDown shuts a session down, and keeps it until the peer is informed.
func (e *Engine) shutDown(s *session, now time.Time) {
	s.Disable(now)
	s.until = now.Add(s.PeerDetectionTime())
	e.closing[s.Discriminator()] = s
}

func (e *Engine) remove(s *session) {
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
	}
	e.version++
	delete(e.closing, s.Discriminator())
	delete(e.discriminator, s.Discriminator())
	if e.remote[s.remote()] == s {
		delete(e.remote, s.remote())
	}
}

func (e *Engine) free() uint32 {
	for {
		d := rand.Uint32()
		if _, taken := e.discriminator[d]; d != 0 && !taken {
			return d
		}
	}
}

// Run sends and receives packets until ctx is done.
func (e *Engine) Run(ctx context.Context) error {
	runtime.LockOSThread()
	e.priority = realtime()
	stop := context.AfterFunc(ctx, e.interrupt)
	defer stop()
	payload, oob := make([]byte, maxPacket), make([]byte, 128)
	for ctx.Err() == nil {
		e.applyConfig(time.Now())
		e.publish(time.Now())
		if err := poll(e.descriptors(time.Now()), e.wait(time.Now())); err != nil {
			return err
		}
		e.drainWake()
		flooded := false
		for k, l := range e.listeners {
			n := 0
			for ; l.fd >= 0 && n < batch; n++ {
				d, ok := receive(l.fd, payload, oob)
				if !ok {
					break
				}
				e.dispatch(d, k, time.Now())
			}
			flooded = flooded || n == batch
		}
		e.advance(time.Now())
		if flooded {
			time.Sleep(pause)
		}
	}
	return ctx.Err()
}

func (e *Engine) applyConfig(now time.Time) {
	if want := e.wanted.Load(); want != e.have {
		e.have = want
		e.set(want, now)
	}
	e.handOver()
}

// publish creates a report after a change, and every second for the counters.
func (e *Engine) publish(now time.Time) {
	if !e.changed && now.Sub(e.published) < time.Second {
		return
	}
	e.report.Store(e.makeReport())
	e.published = now
	if e.changed {
		e.changed = false
		_, _ = unix.Write(e.reportFD, one)
	}
}

// wait returns the time until the next event; negative means infinite.
func (e *Engine) wait(now time.Time) time.Duration {
	var next time.Time
	soonest := func(at time.Time) {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for _, s := range e.discriminator {
		soonest(s.Next())
		soonest(s.until)
	}
	for _, l := range e.listeners {
		if l.err != nil {
			soonest(l.retry)
		}
	}
	if next.IsZero() {
		return -1
	}
	return max(0, next.Sub(now))
}

func poll(descriptors []unix.PollFd, wait time.Duration) error {
	var timeout *unix.Timespec
	if wait >= 0 {
		t := unix.NsecToTimespec(wait.Nanoseconds())
		timeout = &t
	}
	if _, err := unix.Ppoll(descriptors, timeout, nil); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for packets: %w", err)
	}
	return nil
}

// dispatch passes a datagram to its session (RFC 5880, section 6.8.6).
func (e *Engine) dispatch(d datagram, k kind, now time.Time) {
	s, p, reason := e.find(d, k)
	if reason != "" {
		e.discarded[reason]++
		return
	}
	if answer, send := s.Receive(p, now); send {
		e.send(s, answer, now)
	}
}

func (e *Engine) find(d datagram, k kind) (*session, bfd.Packet, string) {
	p, err := bfd.Decode(d.payload)
	if err != nil {
		return nil, p, "malformed"
	}
	from := remote{d.from, d.scope, k.multihop}
	s := e.remote[from]
	if p.YourDiscriminator != 0 {
		s = e.discriminator[p.YourDiscriminator]
	}
	switch {
	case s == nil || s.kind() != k:
		return nil, p, "no_session"
	case d.ttl < int(s.minTTL()):
		return nil, p, "ttl"
	case s.remote() != from && (p.YourDiscriminator == 0 || !s.IsFromPeer(p)):
		// Both discriminators match if the peer's address changed (RFC 5880, section 6.3).
		return nil, p, "other_address"
	case k.multihop && s.State() == bfd.Up && !s.IsFromPeer(p):
		// Packets with the peer's address may be spoofed. A restarted peer is accepted after the detection time.
		return nil, p, "other_discriminator"
	}
	return s, p, ""
}

func (e *Engine) advance(now time.Time) {
	for _, s := range e.discriminator {
		if !s.until.IsZero() && !now.Before(s.until) {
			e.remove(s)
			continue
		}
		interval := s.TransmitInterval()
		if p, send := s.Advance(now); send {
			e.send(s, p, now)
			if s.reported.state == bfd.Up && s.State() == bfd.Up && s.reported.transmit == interval {
				e.longestDelay = max(e.longestDelay, now.Sub(s.sent)-interval)
			}
			s.sent = now
		}
		if seen := s.observed(); seen != s.reported {
			s.reported, e.changed = seen, true
		}
	}
}

// send sends a packet. A failure counts as packet loss.
func (e *Engine) send(s *session, p bfd.Packet, now time.Time) {
	s.problem = e.trySend(s, p, now)
}

func (e *Engine) trySend(s *session, p bfd.Packet, now time.Time) string {
	if s.fd < 0 {
		if now.Before(s.retry) {
			return s.problem
		}
		s.retry = now.Add(reopen)
		fd, err := sender(s.peer.Source, s.peer.Address.Is6())
		if err != nil {
			return err.Error()
		}
		s.fd = fd
	}
	var buffer [64]byte
	k := s.kind()
	to := socketAddress(s.peer.Address, k.v6, k.port(), s.scope)
	if err := unix.Sendto(s.fd, p.Append(buffer[:0]), unix.MSG_DONTWAIT, to); err != nil {
		return fmt.Sprintf("send to %s port %d: %v", s.peer.Address, k.port(), err)
	}
	return ""
}

func (e *Engine) interrupt() {
	_, _ = unix.Write(e.wake, one)
}

func (e *Engine) drainWake() {
	var count [8]byte
	_, _ = unix.Read(e.wake, count[:])
}
