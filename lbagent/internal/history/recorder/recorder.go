// SPDX-License-Identifier: Apache-2.0

// Package recorder records the history of a node in files. Passes only hand over their state; changes are
// computed (package history) and written (package segments) in another goroutine.
package recorder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/history"
	"github.com/millrace-lb/millrace/lbagent/internal/history/segments"
	"github.com/millrace-lb/millrace/lbagent/internal/metrics"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
)

const (
	// recordPause is the minimum interval between comparisons of states, which is also at least recordShare
	// times the duration of a comparison.
	recordPause = 100 * time.Millisecond
	recordShare = 100
	countEvery  = time.Minute
)

// Recorder records a history of the node. A nil Recorder records nothing.
type Recorder struct {
	// directory is the directory of the history; empty disables it.
	directory string
	source    Source
	logger    logr.Logger

	wake chan struct{}
	mu   sync.Mutex
	next *history.State

	// lock protects the following fields.
	lock sync.Mutex
	// log is nil while nothing is recorded; off is the reason.
	log     *segments.Log
	off     error
	tracker *history.Tracker
	unsaved uint64
	failing bool
}

// Source provides observations besides passes.
type Source struct {
	Sessions func() []bgp.Session
	Drops    func() (dataplane.DropCounts, error)
	Services func() map[forwarding.FrontendKey]string
}

func directoryIn(stateDir string) string { return filepath.Join(stateDir, "history") }

// New opens the history in the state directory; empty disables it. The agent does not depend on it, so
// errors are only logged, and opening is retried.
func New(stateDir string, of Source, logger logr.Logger) *Recorder {
	r := &Recorder{source: of, logger: logger, wake: make(chan struct{}, 1), tracker: history.NewTracker()}
	if stateDir == "" {
		r.off = errors.New("the history is disabled: --state-dir of the agent is empty")
		return r
	}
	r.directory = directoryIn(stateDir)
	r.open()
	return r
}

func (r *Recorder) open() bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.log != nil {
		return false
	}
	log, err := segments.Open(r.directory)
	switch {
	case err == nil && r.off != nil:
		r.logger.Info("The history is recorded")
	case err != nil && r.off == nil:
		r.logger.Error(err, "Could not open the history: check free space and write access in --state-dir; will retry", "every", countEvery)
	}
	if r.off = err; err == nil {
		r.log = log
	}
	return err == nil
}

func (r *Recorder) records() bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.log != nil
}

// Remove removes the history in a state directory.
func Remove(stateDir string) error { return segments.Remove(directoryIn(stateDir)) }

// Nodes is the state of other nodes.
type Nodes interface {
	// Down returns the nodes that were down in the last pass, and whether this node may be cut off.
	Down() (down map[forwarding.NodeID]bool, cutOff bool)
}

// Observe hands over the state of a pass; m is nil if the pass computed no model.
func (r *Recorder) Observe(now time.Time, m *model.Model, observation *status.Observation, nodes Nodes) {
	if r == nil || m == nil || !r.records() {
		return
	}
	state := &history.State{Time: now, Model: m, Decisions: observation.Decisions, Problems: problemsIn(observation)}
	state.Down, state.CutOff = nodes.Down()
	for i := range observation.Sessions {
		session := history.Session{Peer: observation.Sessions[i].Peer}
		if bfd := observation.Sessions[i].BFD; bfd != nil {
			session.BFD, session.BFDMessage = string(bfd.State), bfd.Message
		}
		state.Sessions = append(state.Sessions, session)
	}
	r.mu.Lock()
	r.next = state
	r.mu.Unlock()
	notify.Signal(r.wake)
}

func problemsIn(observation *status.Observation) (problems []history.Problem) {
	add := func(text string) { problems = append(problems, history.Problem{Text: text}) }
	if observation.ProgramError != nil {
		add("maps not written: " + observation.ProgramError.Error())
	}
	for _, uplink := range observation.Interfaces {
		if uplink.XDPMode == millracev1beta1.XDPNone {
			add(fmt.Sprintf("no program on %s: %s", uplink.Name, uplink.Message))
		}
	}
	for _, text := range observation.MissingPrograms {
		add("uplink without the programs: " + text)
	}
	for _, text := range observation.Host {
		add(text)
	}
	for _, problem := range observation.Problems {
		out := history.Problem{Text: fmt.Sprintf("%s %s: %s: %s", problem.Object.Kind, objectName(problem.Object), problem.Reason, problem.Message)}
		if problem.Object.Kind == "Service" {
			out.Service = objectName(problem.Object)
		}
		problems = append(problems, out)
	}
	return problems
}

func objectName(object model.ObjectReference) string {
	if object.Namespace == "" {
		return object.Name
	}
	return object.Namespace + "/" + object.Name
}

// Run records until ctx is done, and then the end of the agent.
func (r *Recorder) Run(ctx context.Context, version string) error {
	if r.directory == "" {
		return nil
	}
	defer r.close()
	ticker := time.NewTicker(countEvery)
	defer ticker.Stop()
	began := func() { r.record(func(k *history.Tracker) [][]byte { return k.Agent("Started", version, time.Now()) }) }
	began()
	r.count(time.Now())
	for {
		select {
		case <-ctx.Done():
			r.observe()
			r.count(time.Now())
			r.record(func(k *history.Tracker) [][]byte { return k.Agent("Ended", "", time.Now()) })
			return ctx.Err()
		case <-ticker.C:
			if r.open() {
				began()
			}
			r.count(time.Now())
			continue
		case <-r.wake:
		}
		looked := time.Now()
		r.observe()
		pause := time.NewTimer(max(recordPause, recordShare*time.Since(looked)))
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

func (r *Recorder) close() {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.log != nil {
		_ = r.log.Close()
	}
}

func (r *Recorder) observe() {
	r.mu.Lock()
	state := r.next
	r.next = nil
	r.mu.Unlock()
	if state == nil {
		return
	}
	bfd := map[string]history.Session{}
	for _, session := range state.Sessions {
		bfd[session.Peer] = session
	}
	state.Sessions = nil
	for _, session := range r.source.Sessions() {
		seen := history.Session{
			Peer: session.Peer, Address: session.Address, Established: session.IsEstablished(), Since: session.Since, Flaps: session.Flaps,
			Message: cmp.Or(session.Message, session.LastError), BFD: bfd[session.Peer].BFD, BFDMessage: bfd[session.Peer].BFDMessage,
		}
		if seen.Established {
			seen.Message = session.LastError
		}
		state.Sessions = append(state.Sessions, seen)
	}
	r.record(func(k *history.Tracker) [][]byte { return k.Update(state) })
}

func (r *Recorder) count(now time.Time) {
	if !r.records() {
		return
	}
	counts, err := r.source.Drops()
	if err != nil {
		r.logger.Error(err, "Could not record dropped packets; will retry", "after", countEvery)
	}
	services := r.source.Services()
	r.record(func(k *history.Tracker) (lines [][]byte) {
		if err == nil {
			lines = k.Count(history.Counters(counts), services, now)
		}
		return append(lines, k.Dropped(now)...)
	})
}

func (r *Recorder) record(makeLines func(*history.Tracker) [][]byte) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.log == nil {
		return
	}
	lines := makeLines(r.tracker)
	if len(lines) == 0 {
		return
	}
	err := r.log.Append(lines)
	switch {
	case err != nil && !r.failing:
		r.logger.Error(err, "Could not write the history: check free space and write access in --state-dir; entries are lost until then")
	case err == nil && r.failing:
		r.logger.Info("The history is written again", "lost", r.unsaved)
	}
	if err != nil {
		r.unsaved += uint64(len(lines))
	}
	r.failing = err != nil
}

// Query runs a query of the console.
func (r *Recorder) Query(query *consoleapi.HistoryQuery) (*consoleapi.History, error) {
	r.lock.Lock()
	log, off := r.log, r.off
	r.lock.Unlock()
	if log == nil {
		return nil, off
	}
	selection := history.NewSelection(*query)
	if err := log.Read(selection.Add); err != nil {
		return nil, err
	}
	return selection.Result(), nil
}

// Metrics returns the values for the metrics of the history.
func (r *Recorder) Metrics() metrics.History {
	if r.directory == "" {
		return metrics.History{}
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	out := metrics.History{Dropped: map[string]uint64{}, Unwritten: r.unsaved}
	if r.log != nil {
		out.Bytes = r.log.Size()
	}
	for kind, count := range r.tracker.DroppedCounts() {
		out.Dropped[string(kind)] = count
	}
	return out
}
