// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

type link struct {
	t     *rapid.T
	now   time.Time
	ends  [2]*Session
	wires [2][]inFlight
	// loss is the fraction of packets lost, by sending end; delay applies to each packet.
	loss   [2]float64
	delay  time.Duration
	random *rand.Rand
	sent   [2][]time.Time
}

type inFlight struct {
	payload []byte
	arrives time.Time
}

func drawParameters(t *rapid.T, label string) Parameters {
	interval := func(name string) time.Duration {
		return time.Duration(rapid.IntRange(10, 500).Draw(t, label+name)) * ms
	}
	return Parameters{
		TransmitInterval: interval(" tx"), ReceiveInterval: interval(" rx"),
		DetectMultiplier: uint8(rapid.IntRange(1, 10).Draw(t, label+" multiplier")),
	}
}

func newLink(t *rapid.T) *link {
	l := &link{t: t, now: epoch, random: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))}
	// Less than the jitter of the shortest interval, so that no packet is late.
	l.delay = time.Duration(rapid.IntRange(0, 900).Draw(t, "delay")) * time.Microsecond
	for i, name := range []string{"a", "b"} {
		l.ends[i] = NewSession(drawParameters(t, name), uint32(i+1), l.random.Float64, l.now)
	}
	return l
}

func (l *link) run(duration time.Duration, check func()) {
	end := l.now.Add(duration)
	for {
		next := end
		for i := range l.ends {
			for _, at := range []time.Time{l.ends[i].Next(), l.arrival(i)} {
				if !at.IsZero() && at.Before(next) {
					next = at
				}
			}
		}
		if next.After(l.now) {
			l.now = next
		}
		if !l.now.Before(end) {
			return
		}
		for i := range l.ends {
			l.deliver(i)
			if p, send := l.ends[i].Advance(l.now); send {
				l.sent[i] = append(l.sent[i], l.now)
				l.send(i, p)
			}
		}
		check()
	}
}

func (l *link) arrival(from int) time.Time {
	if len(l.wires[from]) == 0 {
		return time.Time{}
	}
	return l.wires[from][0].arrives
}

func (l *link) deliver(from int) {
	for len(l.wires[from]) > 0 && !l.wires[from][0].arrives.After(l.now) {
		payload := l.wires[from][0].payload
		l.wires[from] = slices.Delete(l.wires[from], 0, 1)
		p, err := Decode(payload)
		if err != nil {
			l.t.Fatalf("send %x: %v", payload, err)
		}
		if to := l.ends[1-from]; p.YourDiscriminator == 0 || p.YourDiscriminator == to.Discriminator() {
			if answer, send := to.Receive(p, l.now); send {
				l.send(1-from, answer)
			}
		}
	}
}

func (l *link) send(from int, p Packet) {
	if l.random.Float64() >= l.loss[from] {
		l.wires[from] = append(l.wires[from], inFlight{p.Append(nil), l.now.Add(l.delay)})
	}
}

func (l *link) bothUp() bool { return l.ends[0].State() == Up && l.ends[1].State() == Up }

func (l *link) await(limit time.Duration, what string, condition func() bool) {
	l.t.Helper()
	for end := l.now.Add(limit); !condition(); {
		if !l.now.Before(end) {
			l.t.Fatalf("timeout after %s: %s (%s, %s)", limit, what, l.ends[0].State(), l.ends[1].State())
		}
		l.run(5*ms, func() {})
	}
}

// Two ends establish a session with the negotiated intervals and jitter, which stays up without losses
// during changes of parameters and an increased detection time.
func TestLinkStaysUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t)
		l.await(4*time.Second, "both are up", l.bothUp)
		stays := func() {
			if !l.bothUp() {
				t.Fatalf("%s after %s (%s), %s (%s)", l.now.Sub(epoch), l.ends[0].State(), l.ends[0].Diagnostic(),
					l.ends[1].State(), l.ends[1].Diagnostic())
			}
		}
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			end := l.ends[rapid.IntRange(0, 1).Draw(t, "end")]
			if rapid.Bool().Draw(t, "stretch") {
				end.RequestDetectionTime(time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds")) * time.Second)
			} else {
				end.Set(drawParameters(t, "new"))
			}
			l.run(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms"))*ms, stays)
		}
		l.run(2*time.Second, stays)
		if !l.ends[0].IsConfirmed() || !l.ends[1].IsConfirmed() {
			t.Fatal("the Poll Sequence does not finish")
		}
		l.sent = [2][]time.Time{}
		l.run(5*time.Second, stays)
		for i, end := range l.ends {
			interval := end.TransmitInterval()
			for j := 1; j < len(l.sent[i]); j++ {
				gap := l.sent[i][j].Sub(l.sent[i][j-1])
				if gap > interval || gap < interval*3/4-time.Microsecond {
					t.Fatalf("gap of %s between packets at an interval of %s", gap, interval)
				}
			}
		}
	})
}

// With any loss, an end without packets is down after its detection time, the other follows, and both recover
// afterwards.
func TestLinkRecovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t)
		for range rapid.IntRange(1, 5).Draw(t, "phases") {
			for i := range l.loss {
				l.loss[i] = rapid.Float64Range(0, 1).Draw(t, "loss")
			}
			l.run(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms"))*ms, func() {
				for _, end := range l.ends {
					if s := end.State(); s == AdminDown {
						t.Fatal("AdminDown although it was not requested")
					}
				}
			})
		}
		l.loss = [2]float64{}
		// A stale detection time can be ten seconds, and attempts are a second apart.
		l.await(20*time.Second, "both are up again", l.bothUp)
		l.run(2*time.Second, func() {})

		deaf := rapid.IntRange(0, 1).Draw(t, "deaf")
		l.loss[1-deaf] = 1
		limit := l.ends[deaf].DetectionTime() + l.delay + 5*ms
		losses := l.ends[deaf].Losses()
		l.await(limit, "the end without received packets is down", func() bool { return l.ends[deaf].State() == Down })
		if l.ends[deaf].Losses() != losses+1 {
			t.Fatalf("%d losses, want %d plus 1", l.ends[deaf].Losses(), losses)
		}
		l.await(l.delay+5*ms, "the other end follows", func() bool { return l.ends[1-deaf].State() == Down })
	})
}

// An administrative shutdown reaches the other end and is no loss.
func TestLinkDisabled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t)
		l.await(4*time.Second, "both are up", l.bothUp)
		l.ends[0].Disable(l.now)
		l.run(5*time.Second, func() {})
		if s := l.ends[1]; s.State() != Down || s.PeerState() != AdminDown || s.Losses() != 0 {
			t.Fatalf("other end: state %s, peer state %s, %d losses", s.State(), s.PeerState(), s.Losses())
		}
	})
}
