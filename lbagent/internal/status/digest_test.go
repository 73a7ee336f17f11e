// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/dad"
	"github.com/millrace-lb/millrace/lbagent/internal/readiness"
)

// failing is an observation whose messages and numbers vary with n.
func failing(n int) Observation {
	o := good()
	o.ProgramError = fmt.Errorf("write %d failed", n)
	o.Programmed = n
	o.Sessions[0].State, o.Sessions[0].Message = millracev1beta1.SessionIdle, fmt.Sprintf("attempt %d failed", n)
	o.Decisions = []announce.Decision{{
		VIP:    netip.AddrFrom4([4]byte{203, 0, 113, byte(n)}),
		Reason: announce.ReasonNotProgrammed, Message: fmt.Sprintf("not in pass %d", n),
	}}
	return o
}

// Changing messages are written in a burst, then every 40 seconds, and finally as they are.
func TestWriterOfChangingMessages(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		const passes = 300
		for n := range passes {
			w.Set(failing(n))
			time.Sleep(time.Second)
		}
		s.mu.Lock()
		if most := passes/int(knownDigestInterval/time.Second) + digestBurst; len(s.writes) < 2 || len(s.writes) > most {
			t.Errorf("%d writes in %d s, want 2 to %d", len(s.writes), passes, most)
		}
		s.mu.Unlock()
		time.Sleep(knownDigestInterval)
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := int(s.stored.Status.VIPs.Programmed); got != passes-1 {
			t.Errorf("finally pass %d is reported, want %d", got, passes-1)
		}
	})
}

// Hosts that claim VIPs alternately are limited likewise, because they may be spoofed.
func TestWriterOfManyDuplicates(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		const passes = 300
		for n := range passes {
			o := good()
			o.Duplicates = []dad.Holder{{
				Probe:        dad.Probe{Interface: "eth0", Address: netip.AddrFrom4([4]byte{203, 0, 113, byte(n)})},
				HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(n)},
			}}
			w.Set(o)
			time.Sleep(time.Second)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if most := passes/int(knownDigestInterval/time.Second) + digestBurst; len(s.writes) < 2 || len(s.writes) > most {
			t.Errorf("%d writes in %d s, want 2 to %d", len(s.writes), passes, most)
		}
	})
}

func TestWriterOfTwoReasons(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		const passes = 300
		for n := range passes {
			o := good()
			if n%2 == 0 {
				o.ProgramError = errors.New("no memory")
			}
			w.Set(o)
			time.Sleep(time.Second)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if most := passes/int(knownDigestInterval/time.Second) + digestBurst; len(s.writes) < 4 || len(s.writes) > most {
			t.Errorf("%d writes in %d s, want 4 to %d", len(s.writes), passes, most)
		}
	})
}

func TestWriterOfAnotherReason(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		w.Set(good())
		time.Sleep(2 * interval)
		w.Set(failing(1))
		time.Sleep(2 * interval)
		w.Set(version("v2"))
		time.Sleep(2 * interval)
		s.expect(t, "three digests", 3, "v2")
	})
}

// flapping is an observation of a session that is up for four seconds and down for three, with varying numbers
// of VIPs.
func flapping(second int, now time.Time) Observation {
	o := good()
	session := &o.Sessions[0]
	changed := metav1.NewTime(now.Add(-time.Duration(second%7) * time.Second)).Rfc3339Copy()
	switch at := second % 7; at {
	case 4, 5, 6:
		session.State = []millracev1beta1.SessionState{
			millracev1beta1.SessionIdle, millracev1beta1.SessionActive, millracev1beta1.SessionOpenSent,
		}[at-4]
		session.Message = fmt.Sprintf("NOTIFICATION received after %d s", second)
		changed = metav1.NewTime(now.Add(-time.Duration(at-4) * time.Second)).Rfc3339Copy()
	}
	session.Since = &changed
	o.Programmed = second % 3
	return o
}

// A session that flaps for an hour causes less than one write in 30 seconds, and its final state is written.
func TestWriterOfFlappingSession(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		const hour = int(time.Hour / time.Second)
		began := time.Now()
		for second := range hour {
			w.Set(flapping(second, time.Now()))
			time.Sleep(time.Second)
		}
		s.mu.Lock()
		if got, most := len(s.writes), int(time.Since(began)/(30*time.Second)); got < 10 || got >= most {
			t.Errorf("%d writes within one hour, want 10 to %d", got, most-1)
		}
		t.Logf("%d writes within one hour", len(s.writes))
		s.mu.Unlock()
		w.Set(good())
		time.Sleep(digestBurst * knownDigestInterval)
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := s.stored.Status.Sessions[0]; got.State != millracev1beta1.SessionEstablished || !got.Since.Equal(&earlier) {
			t.Errorf("finally the session is %+v", got)
		}
	})
}

// probing is an observation of a canary with a number of unanswered ports.
func probing(unanswered int32) Observation {
	o := good()
	o.Sessions[0].Canaries = []millracev1beta1.CanaryStatus{{Address: "203.0.113.250", Announced: true, Reached: "1-3", Unanswered: &unanswered}}
	return o
}

// Canary recovery is reported within ten seconds regardless of other limits. An alternating canary is written
// every ten seconds, and each recovery.
func TestWriterOfCanaries(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		unanswered := func() int32 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return *s.stored.Status.Sessions[0].Canaries[0].Unanswered
		}
		w.Set(probing(0))
		time.Sleep(2 * interval)
		// Use up the limit of writes with known digests.
		for n := range 60 {
			o := probing(0)
			o.Programmed = n
			w.Set(o)
			time.Sleep(time.Second)
		}
		for round := range 20 {
			w.Set(probing(64))
			time.Sleep(canaryInterval + interval)
			if got := unanswered(); got != 64 {
				t.Errorf("round %d: %d unanswered ports are reported, want 64", round, got)
			}
			w.Set(probing(0))
			time.Sleep(canaryInterval + interval)
			if got := unanswered(); got != 0 {
				t.Errorf("round %d: %d unanswered ports are reported, want 0", round, got)
			}
		}
		s.mu.Lock()
		before := len(s.writes)
		s.mu.Unlock()
		const hour = int(time.Hour / time.Second)
		for second := range hour {
			w.Set(probing(int32(second % 2)))
			time.Sleep(time.Second)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		// Each recovery is written immediately.
		most := 2*hour/int(canaryInterval/time.Second) + hour/int(knownDigestInterval/time.Second) + 2*digestBurst
		if writes := len(s.writes) - before; writes < hour/20 || writes > most {
			t.Errorf("%d writes within one hour, want %d to %d", writes, hour/20, most)
		}
	})
}

// After repeated session resets, a node's recovery is reported immediately even while another session is down:
// the node itself may be the first to announce again.
func TestWriterOfNodeReachedAgain(t *testing.T) {
	reached := func(ids string, second millracev1beta1.SessionState) Observation {
		o := probing(0)
		o.Sessions[0].Canaries[0].Reached = ids
		other := o.Sessions[0]
		other.Peer, other.State, other.Canaries = "second", second, nil
		o.Sessions = append(o.Sessions, other)
		return o
	}
	with(t, func(t *testing.T, s *server, w *Writer) {
		w.Set(reached("1-3", millracev1beta1.SessionEstablished))
		time.Sleep(2 * interval)
		told := func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.stored.Status.Sessions[0].Canaries[0].Reached
		}
		for round := range 20 {
			w.Set(reached("1-2", millracev1beta1.SessionEstablished))
			// Wait until the missing node is reported.
			for told() != "1-2" {
				time.Sleep(interval)
			}
			w.Set(reached("1-3", millracev1beta1.SessionEstablished))
			time.Sleep(2 * interval)
			if got := told(); got != "1-3" {
				t.Errorf("round %d: %s reported two seconds after the third recovered", round, got)
			}
		}
		w.Set(reached("1-2", millracev1beta1.SessionEstablished))
		time.Sleep(4 * canaryInterval)
		w.Set(reached("1-3", millracev1beta1.SessionIdle))
		time.Sleep(canaryInterval + 2*interval)
		if got := told(); got != "1-3" {
			t.Errorf("%s reported while another session is down", got)
		}
	})
}

func TestWriterOfFlappingSessionWithCanary(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		const hour = int(time.Hour / time.Second)
		for second := range hour {
			o := flapping(second, time.Now())
			if o.Sessions[0].State == millracev1beta1.SessionEstablished {
				o.Sessions[0].Canaries = probing(0).Sessions[0].Canaries
			}
			w.Set(o)
			time.Sleep(time.Second)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if got, most := len(s.writes), hour/30; got < 10 || got >= most {
			t.Errorf("%d writes within one hour, want 10 to %d", got, most-1)
		}
	})
}

// A change on all nodes is spread over a second per hundred nodes, at most a minute. New states are not
// delayed.
func TestSpread(t *testing.T) {
	for _, test := range []struct {
		nodes  int
		spread time.Duration
	}{{3, 30 * time.Millisecond}, {1000, 10 * time.Second}, {5000, 50 * time.Second}, {20000, time.Minute}} {
		if got := spread(test.nodes); got != test.spread {
			t.Errorf("spread(%d) = %s, want %s", test.nodes, got, test.spread)
		}
	}
	with(t, func(t *testing.T, s *server, w *Writer) {
		const nodes, hour = 5000, int(time.Hour / time.Second)
		for second := range hour {
			o := good()
			o.Nodes, o.Programmed = nodes, second
			w.Set(o)
			time.Sleep(time.Second)
		}
		s.mu.Lock()
		// One in 50 s: a hundred writes per second of the cluster.
		writes := len(s.writes)
		s.mu.Unlock()
		if most := hour/50 + digestBurst + 1; writes < 60 || writes > most {
			t.Errorf("%d writes within one hour of changing counters", writes)
		}
		failed := failing(1)
		failed.Nodes = nodes
		w.Set(failed)
		time.Sleep(2 * interval)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.writes) != writes+1 {
			t.Error("a new reason is delayed by the jitter")
		}
	})
}

// All nodes detect mass unreadiness at the same time, when the API server becomes available: even agents
// without previous writes spread theirs.
func TestSpreadOfReadiness(t *testing.T) {
	const nodes = 5000
	found := good()
	found.Nodes = nodes
	late, most := 0, 40
	for range most {
		with(t, func(t *testing.T, s *server, w *Writer) {
			stored := s.stored.DeepCopy()
			stored.Status = Build(found, stored, metav1.NewTime(time.Now()).Rfc3339Copy())
			s.put(stored)
			w.Set(found)
			time.Sleep(2 * interval)
			o := found
			o.Unready = readiness.Served{Endpoints: 9, Services: 3}
			w.Set(o)
			time.Sleep(spread(nodes) / 2)
			s.mu.Lock()
			if len(s.writes) == 0 {
				late++
			}
			s.mu.Unlock()
			time.Sleep(spread(nodes)/2 + 2*interval)
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.writes) != 1 || meta.FindStatusCondition(s.stored.Status.Conditions, millracev1beta1.ConditionEndpointsHealthy) == nil {
				t.Errorf("%d writes, conditions %+v", len(s.writes), s.stored.Status.Conditions)
			}
		})
	}
	// Half of them on average; fewer than 5 or more than 35 are less likely than 1e-6.
	if late < 5 || late > 35 {
		t.Errorf("%d of %d nodes wrote in the second half of the interval", late, most)
	}
}

func TestSpreadOfOneChange(t *testing.T) {
	const nodes = 5000
	now := time.Unix(1e9, 0)
	known := &millracev1beta1.LBNodeReportStatus{}
	seconds := map[int]int{}
	for range nodes {
		var node reportHistory
		node.add(known, now)
		wait := node.wait(known, now, time.Duration(rand.Float64()*float64(spread(nodes))))
		if again := node.wait(known, now.Add(wait), time.Hour); again != 0 {
			t.Fatalf("due in %s, then again in %s", wait, again)
		}
		seconds[int(wait/time.Second)]++
	}
	for second, writes := range seconds {
		if second >= 50 || writes > 160 {
			t.Errorf("%d writes in second %d", writes, second)
		}
	}
}
