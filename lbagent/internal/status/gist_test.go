// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
)

// failing is an observation whose texts and numbers are those of the n-th pass.
func failing(n int) Observation {
	o := good()
	o.ProgramError = fmt.Errorf("write %d failed", n)
	o.Programmed = n
	o.Sessions[0].State, o.Sessions[0].Message = millracev1alpha1.SessionIdle, fmt.Sprintf("attempt %d failed", n)
	o.Decisions = []announce.Decision{{
		VIP:    netip.AddrFrom4([4]byte{203, 0, 113, byte(n)}),
		Reason: announce.ReasonNotProgrammed, Message: fmt.Sprintf("not in pass %d", n),
	}}
	return o
}

// What fails with other words in each pass is told a few times, then twice a minute, and at last
// as it is.
func TestWriterOfChangingMessages(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		const passes = 300
		for n := range passes {
			w.Set(failing(n))
			time.Sleep(time.Second)
		}
		s.mu.Lock()
		if most := passes/int(sameGist/time.Second) + gistBurst; len(s.writes) < 2 || len(s.writes) > most {
			t.Errorf("%d writes in %d s, want 2 to %d", len(s.writes), passes, most)
		}
		s.mu.Unlock()
		time.Sleep(sameGist)
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := int(s.stored.Status.VIPs.Programmed); got != passes-1 {
			t.Errorf("in the end pass %d is told, want %d", got, passes-1)
		}
	})
}

// What goes to and fro is told once each, then twice a minute.
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
		if most := 2 * (passes/int(sameGist/time.Second) + gistBurst); len(s.writes) < 4 || len(s.writes) > most {
			t.Errorf("%d writes in %d s, want 4 to %d", len(s.writes), passes, most)
		}
	})
}

// Another reason is told at once, whatever was told before.
func TestWriterOfAnotherReason(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		w.Set(good())
		time.Sleep(2 * interval)
		w.Set(failing(1))
		time.Sleep(2 * interval)
		w.Set(version("v2"))
		time.Sleep(2 * interval)
		s.expect(t, "three gists", 3, "v2")
	})
}
