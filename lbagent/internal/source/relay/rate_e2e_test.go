// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package relay

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const (
	// agentsVariable is the number of agents in TestRate.
	agentsVariable = "MILLRACE_AGENTS"
	// TestRate makes this number of changes at this rate per second.
	changes, rate = 1000, 100
)

// arrivals are the times when an agent received each version.
type arrivals struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

func (a *arrivals) OnAdd(any, bool) {}
func (a *arrivals) OnDelete(any)    {}
func (a *arrivals) OnUpdate(_, after any) {
	slice, ok := after.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, seen := a.seen[slice.ResourceVersion]; !seen {
		a.seen[slice.ResourceVersion] = time.Now()
	}
}

// TestRate changes endpoints of large slices at a constant rate and prints the bytes that the API server sends
// to a relay and to an agent without relay, and the latency of agents.
func TestRate(t *testing.T) {
	count := 20
	if text := os.Getenv(agentsVariable); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", agentsVariable, err)
		}
	}
	e := newEnvironment(t)
	directory, address := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", controlplane.FreePort(t))
	const names = 50
	for i := range names {
		e.create(fmt.Sprintf("web-%d", i), 100)
	}
	by := e.relayAt(address, directory)
	without := e.agent("127.0.0.1:1", t.TempDir())
	agents := []*agent{without}
	for range count {
		agents = append(agents, e.agent(address, directory))
	}
	e.awaitEqual(agents...)
	seen := make([]*arrivals, len(agents))
	for i, a := range agents {
		seen[i] = &arrivals{seen: map[string]time.Time{}}
		_, err := a.informer.AddEventHandler(seen[i])
		controlplane.Must(t, err)
	}
	relayed, direct, told := by.sent.Load(), without.sent.Load(), by.told.Load()
	written := e.changeAtRate(names)
	e.awaitEqual(agents...)
	relayed, direct, told = by.sent.Load()-relayed, without.sent.Load()-direct, by.told.Load()-told
	perSecond := func(bytes int64) string { return fmt.Sprintf("%.0f KB/s", float64(bytes)/1000/(changes/rate)) }
	t.Logf("the API server sends %s to a relay, %s to an agent without a relay; the relay sends to each of %d agents %s",
		perSecond(relayed), perSecond(direct), count, perSecond(told/int64(count)))
	for i, name := range map[int]string{0: "without a relay", 1: "by a relay"} {
		var late []time.Duration
		for version, at := range written {
			if arrived, ok := seen[i].seen[version]; ok {
				late = append(late, max(0, arrived.Sub(at)))
			}
		}
		slices.Sort(late)
		t.Logf("agent %s received %d of %d changes: median %s, 99th percentile %s after the API server's response", name,
			len(late), changes, late[len(late)/2].Round(100*time.Microsecond), late[len(late)*99/100].Round(100*time.Microsecond))
	}
	for i, a := range agents[1:] {
		if sent := a.sent.Load(); sent != 0 {
			t.Errorf("the API server sent %d bytes to agent %d", sent, i)
		}
	}
}

// changeAtRate returns the time of each write by version.
func (e *environment) changeAtRate(names int) map[string]time.Time {
	e.t.Helper()
	written := map[string]time.Time{}
	ticks := time.NewTicker(time.Second / rate)
	defer ticks.Stop()
	for i := range changes {
		<-ticks.C
		written[e.toggle(fmt.Sprintf("web-%d", i%names), i)] = time.Now()
	}
	return written
}
