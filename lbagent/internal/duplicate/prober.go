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

// afterFailure is how long the prober rests when the kernel does not let it ask.
const afterFailure = 10 * time.Second

// Ask asks questions until ctx is done, and returns the answers of hosts that have the address.
type Ask func(ctx context.Context, questions []Question) (map[Question]Answer, error)

// Prober asks the questions that it is given, again and again.
type Prober struct {
	ask     Ask
	changed func()
	logger  logr.Logger
	wake    chan struct{}

	mu       sync.Mutex
	wanted   []Wanted
	nodes    int
	answered map[Question]Answer
}

// NewProber returns a Prober that calls changed after each answer that is new or another one.
func NewProber(ask Ask, changed func(), logger logr.Logger) *Prober {
	return &Prober{ask: ask, changed: changed, logger: logger, wake: make(chan struct{}, 1)}
}

// Want replaces the questions, which so many nodes may ask, and returns the answers that are known.
func (p *Prober) Want(wanted []Wanted, nodes int) map[Question]Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.wanted, wanted) || p.nodes != nodes {
		p.wanted, p.nodes = wanted, nodes
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
	return p.answered
}

func (p *Prober) want() ([]Wanted, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted, p.nodes
}

// tell publishes the answers.
func (p *Prober) tell(known map[Question]asked) {
	answered := make(map[Question]Answer, len(known))
	for question, last := range known {
		answered[question] = last.Answer
	}
	p.mu.Lock()
	changed := !maps.EqualFunc(answered, p.answered, func(a, b Answer) bool { return slices.Equal(a.HardwareAddr, b.HardwareAddr) })
	p.answered = answered
	p.mu.Unlock()
	if changed {
		p.changed()
	}
}

// Run asks until ctx is done.
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
		}
		s.want(p.want())
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

// round asks questions, and returns when to go on.
func (p *Prober) round(ctx context.Context, s *schedule, questions []Question) (wait time.Duration) {
	limited, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	answers, err := p.ask(limited, questions)
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		// Whoever waits for an answer does not for ever.
		p.logger.Error(err, "Cannot look for hosts that have the address of a VIP; will try again", "after", afterFailure)
		return afterFailure
	}
	s.answer(questions, answers, time.Now())
	p.tell(s.asked)
	return time.Nanosecond
}
