// SPDX-License-Identifier: Apache-2.0

package dad

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

type link struct {
	sync.Mutex
	holders map[Probe]Answer
	asked   map[Probe][]time.Time
	most    int
	err     error
}

func (l *link) ask(ctx context.Context, probes []Probe) (map[Probe]Answer, error) {
	answers, err := l.answers(probes)
	if err == nil && len(answers) < len(probes) {
		<-ctx.Done()
	}
	return answers, err
}

func (l *link) answers(probes []Probe) (map[Probe]Answer, error) {
	l.Lock()
	defer l.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	l.most = max(l.most, len(probes))
	answers := map[Probe]Answer{}
	for _, probe := range probes {
		l.asked[probe] = append(l.asked[probe], time.Now())
		if answer, held := l.holders[probe]; held {
			answers[probe] = answer
		}
	}
	return answers, nil
}

func (l *link) set(holders map[Probe]Answer, err error) {
	l.Lock()
	defer l.Unlock()
	l.holders, l.err = holders, err
}

// requests returns the times of all probes and the maximum number of concurrent probes.
func (l *link) requests() (asked map[Probe][]time.Time, most int) {
	l.Lock()
	defer l.Unlock()
	return maps.Clone(l.asked), l.most
}

func startProber(t *testing.T, l *link) (p *Prober, changes *atomic.Int32) {
	changes = new(atomic.Int32)
	l.asked = map[Probe][]time.Time{}
	p = NewProber(l.ask, func() { changes.Add(1) }, logr.Discard())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return p, changes
}

func addresses(n int, urgent bool) []ScheduledProbe {
	var wanted []ScheduledProbe
	for i := range n {
		probe := Probe{Interface: "eth0", Address: netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})}
		wanted = append(wanted, ScheduledProbe{Probe: probe, Urgent: urgent})
	}
	return wanted
}

// Scan does not disturb scheduled probes, and only its answer includes trusted hosts.
func TestScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{holders: map[Probe]Answer{onEth0: {HardwareAddr: printer, Trusted: true}, onEth1: {HardwareAddr: printer}}}
		p, changes := startProber(t, l)
		wanted := []ScheduledProbe{{Probe: onEth0, Urgent: true}, {Probe: onEth1, Urgent: true}}
		p.Schedule(wanted, 3)
		answers, err := p.Scan(t.Context(), []Probe{onEth0, onEth1})
		if err != nil || !answers[onEth0].Trusted || answers[onEth1].Trusted || !slices.Equal(answers[onEth1].HardwareAddr, printer) {
			t.Errorf("probe result: %v, error %v", answers, err)
		}
		time.Sleep(2 * window)
		known := p.Schedule(wanted, 3)
		if answer, found := known[onEth0]; !found || answer.HardwareAddr != nil || !slices.Equal(known[onEth1].HardwareAddr, printer) || changes.Load() != 1 {
			t.Errorf("known hosts %v after %d changes, want only the host on eth1", known, changes.Load())
		}
		failure := errors.New("no socket")
		l.set(nil, failure)
		if _, err := p.Scan(t.Context(), []Probe{onEth1}); !errors.Is(err, failure) {
			t.Errorf("error %v, want %v", err, failure)
		}
	})
}

// New probes are answered within seconds, and only changes are signalled.
func TestProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{holders: map[Probe]Answer{onEth1: {HardwareAddr: printer}}}
		p, changes := startProber(t, l)
		wanted := []ScheduledProbe{{Probe: onEth0, Urgent: true}, {Probe: onEth1, Urgent: true}}
		p.Schedule(wanted, 3)
		time.Sleep(window + time.Millisecond)
		answers := p.Schedule(wanted, 3)
		if free, found := answers[onEth0]; !found || free.HardwareAddr != nil || !slices.Equal(answers[onEth1].HardwareAddr, printer) {
			t.Errorf("answers %v, want no host on eth0 and %s on eth1", answers, printer)
		}
		time.Sleep(time.Hour)
		if changes.Load() != 1 {
			t.Errorf("%d changes reported within one hour without changes, want 1", changes.Load())
		}
		l.set(nil, nil)
		time.Sleep(conflictInterval + 2*window)
		if answer, found := p.Schedule(wanted, 3)[onEth1]; !found || answer.HardwareAddr != nil {
			t.Errorf("answer %v, %s after the host left", answer, conflictInterval+2*window)
		}
		l.set(map[Probe]Answer{onEth0: {HardwareAddr: printer}}, nil)
		time.Sleep(freeInterval + 2*window)
		if answer := p.Schedule(wanted, 3)[onEth0]; !slices.Equal(answer.HardwareAddr, printer) {
			t.Errorf("answer %v, %s after the host joined", answer, freeInterval+2*window)
		}
		if changes.Load() != 3 {
			t.Errorf("%d changes were reported, want 3", changes.Load())
		}
	})
}

// An address that is soon reused for another VIP is probed again.
func TestProberOfAnotherVIP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{}
		p, _ := startProber(t, l)
		wanted := []ScheduledProbe{{Probe: onEth0, Urgent: true}}
		p.Schedule(wanted, 3)
		time.Sleep(2 * window)
		if len(p.Schedule(wanted, 3)) != 1 {
			t.Fatal("no answer to the probe")
		}
		for _, pause := range []time.Duration{0, time.Millisecond, 10 * window} {
			p.Schedule(nil, 3)
			time.Sleep(pause)
			if answers := p.Schedule(wanted, 3); len(answers) > 0 {
				t.Errorf("%s later, the previous answer is still used: %v", pause, answers)
			}
			l.set(map[Probe]Answer{onEth0: {HardwareAddr: printer}}, nil)
			time.Sleep(2 * window)
			if answer := p.Schedule(wanted, 3)[onEth0]; !slices.Equal(answer.HardwareAddr, printer) {
				t.Errorf("%s later, the host is not found: %v", pause, answer)
			}
			l.set(nil, nil)
			time.Sleep(conflictInterval + 2*window)
		}
		// No pass saw the absence of the VIP.
		again := []ScheduledProbe{{Probe: onEth0, Created: time.Now(), Urgent: true}}
		if answers := p.Schedule(again, 3); len(answers) > 0 {
			t.Errorf("the answer for the previous VIP is still used: %v", answers)
		}
		time.Sleep(2 * window)
		if len(p.Schedule(again, 3)) != 1 {
			t.Error("the next VIP is not probed")
		}
	})
}

// The number of VIPs does not increase the rate, and all are probed in turn.
func TestProberOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{}
		p, _ := startProber(t, l)
		wanted := addresses(1000, true)
		p.Schedule(wanted, 3)
		time.Sleep(15 * time.Second)
		if got := len(p.Schedule(wanted, 3)); got != len(wanted) {
			t.Fatalf("%d of %d probes were answered after 15 s", got, len(wanted))
		}
		time.Sleep(30 * time.Minute)
		asked, most := l.requests()
		first, second := len(wanted), len(wanted)
		for _, times := range asked {
			first, second = min(first, len(times)), max(second, len(times))
			for i := 1; i < len(times); i++ {
				if times[i].Sub(times[i-1]) < freeInterval {
					t.Fatalf("probed again after %s", times[i].Sub(times[i-1]))
				}
			}
		}
		if first < 2 {
			t.Errorf("an address was requested %d times within 30 minutes, want at least 2", first)
		}
		if most > batch+1 {
			t.Errorf("%d concurrent probes, want at most %d", most, batch+1)
		}
		next := append(slices.Clone(wanted), ScheduledProbe{Probe: onEth1, Urgent: true})
		p.Schedule(next, 3)
		time.Sleep(2*window + minRound)
		if _, found := p.Schedule(next, 3)[onEth1]; !found {
			t.Error("a new probe is blocked by old ones")
		}
		p.Schedule(nil, 3)
		time.Sleep(2 * window)
		asked, _ = l.requests()
		time.Sleep(time.Hour)
		if later, _ := l.requests(); len(later[wanted[0].Probe]) != len(asked[wanted[0].Probe]) {
			t.Error("a probe was sent without being scheduled")
		}
	})
}

// Non-urgent probes of all nodes together are limited to the rate of ten nodes.
func TestProberOfMostNodes(t *testing.T) {
	for nodes, most := range map[int]int{3: 600, 10: 600, 500: 12} {
		synctest.Test(t, func(t *testing.T) {
			l := &link{}
			p, _ := startProber(t, l)
			p.Schedule(addresses(1000, false), nodes)
			time.Sleep(10 * time.Minute)
			asked, _ := l.requests()
			if n := len(asked); n > most+1 || n < most/2 {
				t.Errorf("one of %d nodes sent %d probes within ten minutes, want about %d", nodes, n, most)
			}
		})
	}
}

func TestProberFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{err: errors.New("no buffer space available")}
		p, changes := startProber(t, l)
		var said atomic.Int32
		p.logger = funcr.New(func(string, string) { said.Add(1) }, funcr.Options{})
		p.Schedule([]ScheduledProbe{{Probe: onEth0, Urgent: true}}, 3)
		time.Sleep(time.Minute)
		if len(p.Schedule([]ScheduledProbe{{Probe: onEth0, Urgent: true}}, 3)) > 0 || changes.Load() > 0 {
			t.Error("answered although no probe was sent")
		}
		if said.Load() != 1 {
			t.Errorf("the error was logged %d times within one minute, want once", said.Load())
		}
		l.set(nil, nil)
		time.Sleep(retryInterval + window + time.Millisecond)
		if len(p.Schedule([]ScheduledProbe{{Probe: onEth0, Urgent: true}}, 3)) != 1 {
			t.Error("no probe after the failure")
		}
	})
}
