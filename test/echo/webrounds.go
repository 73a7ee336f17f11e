// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/test/echo/visited"
)

// rounds are the reporting periods. A request belongs to the period in which it was due.
type rounds struct {
	start time.Time

	mu      sync.Mutex
	current *round
}

type round struct {
	start   time.Time
	pending sync.WaitGroup

	mu    sync.Mutex
	kinds map[string]*visits
}

type visits struct {
	visited.Kind
	times []time.Duration
}

func newRounds() *rounds {
	now := time.Now()
	return &rounds{start: now, current: &round{start: now, kinds: map[string]*visits{}}}
}

func (r *rounds) report() visited.Report {
	r.mu.Lock()
	ended := r.current
	r.current = &round{start: time.Now(), kinds: map[string]*visits{}}
	report := visited.Report{
		From: ended.start.Sub(r.start).Seconds(), To: r.current.start.Sub(r.start).Seconds(),
		Kinds: map[string]visited.Kind{},
	}
	r.mu.Unlock()
	ended.pending.Wait()
	ended.mu.Lock()
	defer ended.mu.Unlock()
	for name, kind := range ended.kinds {
		slices.Sort(kind.times)
		kind.P50, kind.P99, kind.Max = quantile(kind.times, 0.5), quantile(kind.times, 0.99), quantile(kind.times, 1)
		report.Kinds[name] = kind.Kind
	}
	return report
}

type request struct {
	rounds *rounds
	round  *round
	kind   string
	due    time.Time
}

func (r *rounds) begin(kind string, due time.Time) *request {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current.pending.Add(1)
	return &request{rounds: r, round: r.current, kind: kind, due: due}
}

// visits requires the lock of the round.
func (r *request) visits() *visits {
	kind := r.round.kinds[r.kind]
	if kind == nil {
		kind = &visits{Kind: visited.Kind{
			FirstFailures: []visited.Event{}, FirstEnds: []visited.Event{}, PerPod: map[string]int{},
		}}
		r.round.kinds[r.kind] = kind
	}
	return kind
}

func (r *request) end(pod string, err error) {
	defer r.round.pending.Done()
	r.round.mu.Lock()
	defer r.round.mu.Unlock()
	kind := r.visits()
	kind.Requests++
	if err != nil {
		kind.Failed++
		kind.FirstFailures = r.rounds.note(kind.FirstFailures, err)
		return
	}
	kind.PerPod[pod]++
	kind.times = append(kind.times, time.Since(r.due))
}

// reopened records that the request's stream ended before or after the message was sent.
func (r *request) reopened(sent bool, err error) {
	r.round.mu.Lock()
	defer r.round.mu.Unlock()
	kind := r.visits()
	kind.Reopened++
	if sent {
		kind.Resent++
	}
	kind.FirstEnds = r.rounds.note(kind.FirstEnds, err)
}

func (r *rounds) note(events []visited.Event, err error) []visited.Event {
	if len(events) >= maxFirstErrors {
		return events
	}
	return append(events, visited.Event{At: time.Since(r.start).Seconds(), Error: err.Error()})
}
