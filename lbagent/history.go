// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/history"
	"github.com/millrace-lb/millrace/lbagent/internal/history/segments"
	"github.com/millrace-lb/millrace/lbagent/internal/metrics"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
	"github.com/millrace-lb/millrace/lbagent/internal/watch"
)

const (
	// recordPause is the least time between two looks at what passes saw. What comes and goes within
	// it is not recorded. Where a look takes long, as with many VIPs, it is recordShare times that.
	recordPause = 100 * time.Millisecond
	recordShare = 100
	// countEvery is how often dropped packets are counted.
	countEvery = time.Minute
)

// History asks the agent at the socket what it recorded.
func History(ctx context.Context, socket string, of consoleapi.HistoryQuery, out io.Writer) error {
	return console.Ask(ctx, socket, console.Request{Command: console.History, History: &of}, out)
}

// recorder keeps a history of the node. Passes only hand over what they saw: what is new in it is
// found, and written, beside them.
type recorder struct {
	// log is nil where nothing is recorded; off says why.
	log *segments.Log
	off error
	recorded
	logger logr.Logger

	wake chan struct{}
	mu   sync.Mutex
	next *history.State

	// lock is of what follows.
	lock    sync.Mutex
	keeper  *history.Keeper
	unsaved uint64
	failing bool
}

// recorded is what the recorder looks at beside passes.
type recorded struct {
	sessions func() []bgp.Session
	drops    func() (dataplane.DropCounts, error)
	services func() map[forwarding.FrontendKey]string
}

func recordedOf(p parts, speaker *bgp.Server, names *directory) recorded {
	return recorded{sessions: speaker.Sessions, drops: p.datapath.DropCounts, services: names.services}
}

// historyIn is the directory of the history in the state directory.
func historyIn(stateDir string) string { return filepath.Join(stateDir, "history") }

// newRecorder opens the history. The agent works without, so failures are only told.
func newRecorder(stateDir string, of recorded, logger logr.Logger) *recorder {
	r := &recorder{recorded: of, logger: logger, wake: make(chan struct{}, 1), keeper: history.NewKeeper()}
	if stateDir == "" {
		r.off = errors.New("no history is kept: --state-dir of the agent is empty")
		return r
	}
	if r.log, r.off = segments.Open(historyIn(stateDir)); r.off != nil {
		r.log = nil
		logger.Error(r.off, "No history is kept until the agent is restarted")
	}
	return r
}

// see hands over what a pass saw.
func (r *recorder) see(now time.Time, m *model.Model, observation *status.Observation, w *watch.Watch) {
	if r == nil || r.log == nil || m == nil {
		return
	}
	state := &history.State{Time: now, Model: m, Decisions: observation.Decisions, Problems: problemsIn(observation)}
	state.Down, state.CutOff = w.Lost()
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
	wake.Notify(r.wake)
}

// problemsIn are what is wrong with the node, and with objects.
func problemsIn(observation *status.Observation) (problems []history.Problem) {
	add := func(text string) { problems = append(problems, history.Problem{Text: text}) }
	if observation.ProgramError != nil {
		add("maps not written: " + observation.ProgramError.Error())
	}
	for _, uplink := range observation.Interfaces {
		if uplink.XDPMode == millracev1alpha1.XDPNone {
			add(fmt.Sprintf("no program on %s: %s", uplink.Name, uplink.Message))
		}
	}
	for _, text := range observation.Lacking {
		add("uplink without the programs: " + text)
	}
	for _, text := range observation.Host {
		add(text)
	}
	for _, problem := range observation.Problems {
		told := history.Problem{Text: fmt.Sprintf("%s %s: %s: %s", problem.Object.Kind, objectName(problem.Object), problem.Reason, problem.Message)}
		if problem.Object.Kind == "Service" {
			told.Service = objectName(problem.Object)
		}
		problems = append(problems, told)
	}
	return problems
}

func objectName(object model.ObjectReference) string {
	if object.Namespace == "" {
		return object.Name
	}
	return object.Namespace + "/" + object.Name
}

// run records until ctx is done, and then the end.
func (r *recorder) run(ctx context.Context, version string) error {
	if r.log == nil {
		return nil
	}
	defer r.log.Close()
	ticker := time.NewTicker(countEvery)
	defer ticker.Stop()
	r.record(func(k *history.Keeper) [][]byte { return k.Agent("Started", version, time.Now()) })
	r.count(time.Now())
	for {
		select {
		case <-ctx.Done():
			r.look()
			r.count(time.Now())
			r.record(func(k *history.Keeper) [][]byte { return k.Agent("Ended", "", time.Now()) })
			return ctx.Err()
		case <-ticker.C:
			r.count(time.Now())
			continue
		case <-r.wake:
		}
		began := time.Now()
		r.look()
		pause := time.NewTimer(max(recordPause, recordShare*time.Since(began)))
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// look records what is new in what passes saw.
func (r *recorder) look() {
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
	for _, session := range r.sessions() {
		seen := history.Session{
			Peer: session.Peer, Address: session.Address, Established: isEstablished(session), Since: session.Since, Flaps: session.Flaps,
			Message: cmp.Or(session.Message, session.LastError), BFD: bfd[session.Peer].BFD, BFDMessage: bfd[session.Peer].BFDMessage,
		}
		if seen.Established {
			seen.Message = session.LastError
		}
		state.Sessions = append(state.Sessions, seen)
	}
	r.record(func(k *history.Keeper) [][]byte { return k.See(state) })
}

// count records what was dropped, and what of the last minute was left out.
func (r *recorder) count(now time.Time) {
	counts, err := r.drops()
	if err != nil {
		r.logger.Error(err, "Dropped packets are not recorded; will try again", "after", countEvery)
	}
	services := r.services()
	r.record(func(k *history.Keeper) (lines [][]byte) {
		if err == nil {
			lines = k.Count(history.Counters(counts), services, now)
		}
		return append(lines, k.LeftOut(now)...)
	})
}

// record writes the lines that make returns.
func (r *recorder) record(makeLines func(*history.Keeper) [][]byte) {
	r.lock.Lock()
	defer r.lock.Unlock()
	lines := makeLines(r.keeper)
	if len(lines) == 0 {
		return
	}
	err := r.log.Append(lines)
	if err != nil {
		r.unsaved += uint64(len(lines))
		if !r.failing {
			r.logger.Error(err, "The history lacks what happens until it can be written again")
		}
	}
	r.failing = err != nil
}

// ask answers a question of the console.
func (r *recorder) ask(query *consoleapi.HistoryQuery) (*consoleapi.History, error) {
	if r.log == nil {
		return nil, r.off
	}
	selection := history.NewSelection(*query)
	if err := r.log.Read(selection.Add); err != nil {
		return nil, err
	}
	return selection.Done(), nil
}

// metrics are those of the history.
func (r *recorder) metrics() metrics.History {
	if r.log == nil {
		return metrics.History{}
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	told := metrics.History{Bytes: r.log.Size(), LeftOut: map[string]uint64{}, Unwritten: r.unsaved}
	for kind, count := range r.keeper.LeftOutCounts() {
		told.LeftOut[string(kind)] = count
	}
	return told
}
