// SPDX-License-Identifier: Apache-2.0

package dad

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

const retryInterval = 10 * time.Second

// ProbeFunc sends probes until ctx is done and returns the answers of hosts that have the address.
type ProbeFunc func(ctx context.Context, probes []Probe) (map[Probe]Answer, error)

// Prober repeats probes on a schedule.
type Prober struct {
	probe   ProbeFunc
	changed func()
	logger  logr.Logger
	wake    chan struct{}
	scans   chan scan
	logged  string

	mu     sync.Mutex
	wanted []ScheduledProbe
	nodes  int
	// since is when each probe was first requested for the VIP created at that time. Earlier answers
	// concern a previous VIP.
	since    map[Probe]time.Time
	created  map[Probe]time.Time
	answered map[Probe]Answer
}

// NewProber returns a Prober that calls changed after each changed answer.
func NewProber(ask ProbeFunc, changed func(), logger logr.Logger) *Prober {
	return &Prober{probe: ask, changed: changed, logger: logger, wake: make(chan struct{}, 1), scans: make(chan scan)}
}

type scan struct {
	probes []Probe
	result chan<- scanResult
}

type scanResult struct {
	answers map[Probe]Answer
	err     error
}

// Scan sends the probes once and returns all answers, including those of trusted hosts. Run executes them,
// because concurrent probes for one address would consume each other's answers.
func (p *Prober) Scan(ctx context.Context, probes []Probe) (map[Probe]Answer, error) {
	answer := make(chan scanResult, 1)
	select {
	case p.scans <- scan{probes, answer}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case looked := <-answer:
		return looked.answers, looked.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *Prober) scan(ctx context.Context, request scan) {
	limited, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	answers, err := p.probe(limited, request.probes)
	request.result <- scanResult{answers, err}
}

// Schedule replaces the scheduled probes, shared by the number of nodes, and returns the known answers.
func (p *Prober) Schedule(wanted []ScheduledProbe, nodes int) map[Probe]Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.wanted, wanted) || p.nodes != nodes {
		p.wanted, p.nodes = wanted, nodes
		p.expire(time.Now())
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
	return p.answered
}

func (p *Prober) expire(now time.Time) {
	since, created := make(map[Probe]time.Time, len(p.wanted)), make(map[Probe]time.Time, len(p.wanted))
	answered := make(map[Probe]Answer, len(p.wanted))
	for i := range p.wanted {
		probe := p.wanted[i].Probe
		since[probe], created[probe] = now, p.wanted[i].Created
		if at, before := p.since[probe]; before && p.created[probe].Equal(p.wanted[i].Created) {
			since[probe] = at
			if answer, known := p.answered[probe]; known {
				answered[probe] = answer
			}
		}
	}
	p.since, p.created, p.answered = since, created, answered
}

func (p *Prober) update(s *schedule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.set(p.wanted, p.nodes, p.since)
}

func (p *Prober) publish(known map[Probe]sentProbe) {
	answered := make(map[Probe]Answer, len(known))
	p.mu.Lock()
	for probe, last := range known {
		if since, wanted := p.since[probe]; wanted && !last.at.Before(since) {
			answered[probe] = last.Answer
		}
	}
	changed := !maps.EqualFunc(answered, p.answered, func(a, b Answer) bool { return slices.Equal(a.HardwareAddr, b.HardwareAddr) })
	p.answered = answered
	p.mu.Unlock()
	if changed {
		p.changed()
	}
}

// Run sends probes until ctx is done.
func (p *Prober) Run(ctx context.Context) error {
	s := &schedule{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.wake:
		case <-timer.C:
		case request := <-p.scans:
			p.scan(ctx, request)
		}
		p.update(s)
		probes, wait := s.due(time.Now())
		if len(probes) > 0 {
			wait = p.round(ctx, s, probes)
		}
		timer.Stop()
		if wait > 0 {
			timer.Reset(wait)
		}
	}
}

func (p *Prober) round(ctx context.Context, s *schedule, probes []Probe) (wait time.Duration) {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	answers, err := p.probe(limited, probes)
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		// VIPs that wait for an answer are announced after answerTimeout.
		if text := err.Error(); text != p.logged {
			p.logger.Error(err, "Duplicate address detection failed; will retry", "every", retryInterval)
			p.logged = text
		}
		return retryInterval
	}
	p.logged = ""
	maps.DeleteFunc(answers, func(_ Probe, answer Answer) bool { return answer.Trusted })
	s.record(probes, answers, began)
	p.publish(s.sent)
	return time.Nanosecond
}
