// SPDX-License-Identifier: Apache-2.0

package duplicate

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

const afterFailure = 10 * time.Second

// Ask sends probes until ctx is done and returns the answers of hosts that have the address.
type Ask func(ctx context.Context, questions []Question) (map[Question]Answer, error)

// Prober repeats probes on a schedule.
type Prober struct {
	ask     Ask
	changed func()
	logger  logr.Logger
	wake    chan struct{}
	looks   chan look
	said    string

	mu     sync.Mutex
	wanted []Wanted
	nodes  int
	// since is when each question was first requested for the VIP created at that time. Earlier answers
	// concern a previous VIP.
	since    map[Question]time.Time
	created  map[Question]time.Time
	answered map[Question]Answer
}

// NewProber returns a Prober that calls changed after each changed answer.
func NewProber(ask Ask, changed func(), logger logr.Logger) *Prober {
	return &Prober{ask: ask, changed: changed, logger: logger, wake: make(chan struct{}, 1), looks: make(chan look)}
}

type look struct {
	questions []Question
	answer    chan<- looked
}

type looked struct {
	answers map[Question]Answer
	err     error
}

// Look sends the probes once and returns all answers, including those of trusted hosts. Run executes them,
// because concurrent probes for one address would consume each other's answers.
func (p *Prober) Look(ctx context.Context, questions []Question) (map[Question]Answer, error) {
	answer := make(chan looked, 1)
	select {
	case p.looks <- look{questions, answer}:
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

func (p *Prober) look(ctx context.Context, asked look) {
	limited, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	answers, err := p.ask(limited, asked.questions)
	asked.answer <- looked{answers, err}
}

// Want replaces the scheduled questions, shared by the number of nodes, and returns the known answers.
func (p *Prober) Want(wanted []Wanted, nodes int) map[Question]Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.wanted, wanted) || p.nodes != nodes {
		p.wanted, p.nodes = wanted, nodes
		p.forget(time.Now())
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
	return p.answered
}

func (p *Prober) forget(now time.Time) {
	since, created := make(map[Question]time.Time, len(p.wanted)), make(map[Question]time.Time, len(p.wanted))
	answered := make(map[Question]Answer, len(p.wanted))
	for i := range p.wanted {
		question := p.wanted[i].Question
		since[question], created[question] = now, p.wanted[i].Created
		if at, before := p.since[question]; before && p.created[question].Equal(p.wanted[i].Created) {
			since[question] = at
			if answer, known := p.answered[question]; known {
				answered[question] = answer
			}
		}
	}
	p.since, p.created, p.answered = since, created, answered
}

func (p *Prober) hand(s *schedule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.want(p.wanted, p.nodes, p.since)
}

func (p *Prober) tell(known map[Question]asked) {
	answered := make(map[Question]Answer, len(known))
	p.mu.Lock()
	for question, last := range known {
		if since, wanted := p.since[question]; wanted && !last.at.Before(since) {
			answered[question] = last.Answer
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
		case asked := <-p.looks:
			p.look(ctx, asked)
		}
		p.hand(s)
		questions, wait := s.due(time.Now())
		if len(questions) > 0 {
			wait = p.round(ctx, s, questions)
		}
		timer.Stop()
		if wait > 0 {
			timer.Reset(wait)
		}
	}
}

func (p *Prober) round(ctx context.Context, s *schedule, questions []Question) (wait time.Duration) {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	answers, err := p.ask(limited, questions)
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		// VIPs that wait for an answer are announced after patience.
		if text := err.Error(); text != p.said {
			p.logger.Error(err, "Cannot look for hosts that have the address of a VIP; will try again", "every", afterFailure)
			p.said = text
		}
		return afterFailure
	}
	p.said = ""
	maps.DeleteFunc(answers, func(_ Question, answer Answer) bool { return answer.Trusted })
	s.answer(questions, answers, began)
	p.tell(s.asked)
	return time.Nanosecond
}
