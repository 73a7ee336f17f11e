// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/history/recorder"
)

func recording(t *testing.T, directory string, n *node) (r *recorder.Recorder, stop func()) {
	t.Helper()
	r = recorder.New(directory, recorder.Source{
		Sessions: func() []bgp.Session { return speakerOf{n}.Sessions() },
		Drops:    func() (dataplane.DropCounts, error) { return dataplane.DropCounts{}, nil },
		Services: func() map[forwarding.FrontendKey]string { return nil },
	}, logr.Discard())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, "v1") }()
	stop = func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("returned %v, want context.Canceled", err)
		}
	}
	return r, stop
}

func awaitEntries(t *testing.T, r *recorder.Recorder, want ...string) {
	t.Helper()
	slices.Sort(want)
	var got []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		history, err := r.Query(&consoleapi.HistoryQuery{})
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, entry := range history.Entries {
			got = append(got, string(entry.Kind)+" "+entry.What)
		}
		if slices.Sort(got); slices.Equal(got, want) {
			return
		}
	}
	t.Fatalf("recorded events %q, want %q", got, want)
}

// Results of passes are recorded asynchronously and survive a restart.
func TestPassesAreRecorded(t *testing.T) {
	directory := t.TempDir()
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 2, 0)
	l := newLoop(n, objects)
	var stop func()
	l.history, stop = recording(t, directory, n)
	now := time.Now()
	mustPass(t, l, now)
	awaitEntries(t, l.history, "Agent Started", "Session Established", "Route Announced")
	objects.EndpointSlices[0] = objects.EndpointSlices[0].DeepCopy()
	objects.EndpointSlices[0].Endpoints = nil
	mustPass(t, l, now.Add(time.Second))
	first := []string{"Agent Started", "Session Established", "Route Announced", "Route NotAnnounced", "Endpoints Gone", "Endpoints NoneReady"}
	awaitEntries(t, l.history, slices.Clone(first)...)
	stop()
	l.history, stop = recording(t, directory, n)
	defer stop()
	awaitEntries(t, l.history, append(first, "Agent Ended", "Agent Started")...)
}
