// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/test/echo/webreport"
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
	kinds map[string]*requestCounts
}

type requestCounts struct {
	webreport.Kind
	times []time.Duration
}

func newRounds() *rounds {
	now := time.Now()
	return &rounds{start: now, current: &round{start: now, kinds: map[string]*requestCounts{}}}
}

func (r *rounds) report() webreport.Report {
	r.mu.Lock()
	ended := r.current
	r.current = &round{start: time.Now(), kinds: map[string]*requestCounts{}}
	report := webreport.Report{
		From: ended.start.Sub(r.start).Seconds(), To: r.current.start.Sub(r.start).Seconds(),
		Kinds: map[string]webreport.Kind{},
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

// counts requires the lock of the round.
func (r *request) counts() *requestCounts {
	kind := r.round.kinds[r.kind]
	if kind == nil {
		kind = &requestCounts{Kind: webreport.Kind{
			FirstFailures: []webreport.Event{}, FirstEnds: []webreport.Event{}, PerPod: map[string]int{},
		}}
		r.round.kinds[r.kind] = kind
	}
	return kind
}

func (r *request) end(pod string, err error) {
	defer r.round.pending.Done()
	r.round.mu.Lock()
	defer r.round.mu.Unlock()
	kind := r.counts()
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
	kind := r.counts()
	kind.Reopened++
	if sent {
		kind.Resent++
	}
	kind.FirstEnds = r.rounds.note(kind.FirstEnds, err)
}

func (r *rounds) note(events []webreport.Event, err error) []webreport.Event {
	if len(events) >= maxFirstErrors {
		return events
	}
	return append(events, webreport.Event{At: time.Since(r.start).Seconds(), Error: err.Error()})
}
