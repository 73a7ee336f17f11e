// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/health"
	"github.com/millrace-lb/millrace/lbagent/internal/l2"
)

type stuckSpeaker struct {
	speakerOf
	entered, release chan struct{}
}

func (s stuckSpeaker) Set(want bgp.Want) error {
	close(s.entered)
	<-s.release
	return s.speakerOf.Set(want)
}

type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) logger() logr.Logger {
	return funcr.New(func(_, line string) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.lines = append(j.lines, line)
	}, funcr.Options{})
}

func (j *journal) has(texts ...string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, line := range j.lines {
		found := true
		for _, text := range texts {
			found = found && strings.Contains(line, text)
		}
		if found {
			return true
		}
	}
	return false
}

// A pass blocked in a speaker is detected by the health check, by a log entry with its stack, and by the L2
// heartbeat, on which other nodes wait before they answer for its VIPs. All recover when it continues.
func TestHungPassIsDetected(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 1)
	l := newLoop(n, objects)
	speaker := stuckSpeaker{speakerOf{n}, make(chan struct{}), make(chan struct{})}
	l.routes.Speaker = speaker
	var later atomic.Int64
	l.health = health.New(func() time.Time { return time.Now().Add(time.Duration(later.Load())) })
	var log journal
	var stalls, beats atomic.Int64
	heartbeat := l2.NewHeartbeat(func() error { beats.Add(1); return nil }, l.health.Alive)
	heartbeat.SetOthers(true)

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = l.run(ctx, nil, nil, nil) })
	running.Go(func() {
		_ = l.health.Watch(ctx, time.Millisecond, log.logger(), func() { stalls.Add(1) })
	})
	defer running.Wait()
	defer cancel()
	<-speaker.entered
	if err := errors.Join(l.health.Alive(), heartbeat.Send()); err != nil {
		t.Errorf("reported as stuck immediately: %v", err)
	}
	later.Store(int64(health.StuckAfter + time.Second))
	await(t, func() bool { return stalls.Load() == 1 })
	if err := l.health.Alive(); err == nil || !strings.Contains(err.Error(), `in step "BGP"`) {
		t.Errorf("Alive = %v, want an error that contains the step", err)
	}
	await(t, func() bool { return log.has("The agent is stuck", "stuckSpeaker.Set") })
	if err := heartbeat.Send(); err == nil || beats.Load() != 1 {
		t.Errorf("%d heartbeats were sent, error %v", beats.Load(), err)
	}
	// Without another node that could answer, this node continues to answer for its VIPs on links. Its
	// programs leave new flows to other nodes.
	heartbeat.SetOthers(false)
	if err := heartbeat.Send(); err != nil || beats.Load() != 1 {
		t.Errorf("heartbeat without other nodes: %v after %d beats, want no error and 1", err, beats.Load())
	}
	close(speaker.release)
	await(t, func() bool { return l.health.Alive() == nil && log.has("The agent makes progress again") })
	if stalls.Load() != 1 {
		t.Errorf("%d stuck passes were counted, want 1", stalls.Load())
	}
}

// slowPlane takes half of a pass's progress timeout for each write.
type slowPlane struct {
	*node
	write func()
}

func (p slowPlane) Apply(op forwarding.Op) error {
	p.write()
	return p.node.Apply(op)
}

// The first pass may take any time while it makes progress.
func TestSlowPassIsAlive(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	for i := range 20 {
		addService(objects, i+1, false, 1, 1)
	}
	l := newLoop(n, objects)
	now, writes := start, 0
	l.health = health.New(func() time.Time { return now })
	l.maps.Plane = slowPlane{n, func() {
		writes++
		now = now.Add(health.StuckAfter / 2)
		if err := l.health.Alive(); err != nil {
			t.Errorf("after %d writes: %v", writes, err)
		}
	}}
	l.health.Begin(now)
	mustPass(t, l, now)
	if took := now.Sub(start); took < 10*health.StuckAfter {
		t.Errorf("the pass took %s, too short for this test", took)
	}
	if err := l.health.Alive(); err != nil {
		t.Error(err)
	}
}

func await(t *testing.T, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatal("condition not met within 10 s")
		}
		time.Sleep(time.Millisecond)
	}
}
