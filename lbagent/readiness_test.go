// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/readiness"
)

func unready(s *model.Snapshot, which ...int) *model.Snapshot {
	result := *s
	result.EndpointSlices = nil
	for n, slice := range s.EndpointSlices {
		edited := slice.DeepCopy()
		for i := range edited.Endpoints {
			for _, service := range which {
				if service == n {
					edited.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: pointer(false), Serving: pointer(false)}
				}
			}
		}
		result.EndpointSlices = append(result.EndpointSlices, edited)
	}
	return &result
}

// After a long API server outage all pods are briefly unready: no client is refused and no route withdrawn,
// also by an agent that started meanwhile. A node that fails probes receives nothing, and a single unready
// Service is refused.
func TestAllUnreadySimultaneously(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 1)
	addService(objects, 2, false, 1, 1)
	current := objects
	j := &fakeProber{known: []membership.Known{{ID: 2}}}
	loopOf := func(previous []*discoveryv1.EndpointSlice) *loop {
		l := newLoop(n, nil)
		l.assembler.Objects = func() *model.Snapshot { return current }
		l.nodeHealth, l.assembler.Readiness = watchBy(j), readiness.New(previous)
		return l
	}
	l := loopOf(nil)
	serves := func(service int) bool {
		for key, frontend := range n.state.Frontends {
			if key.VIP == vipOf(service) {
				return !frontend.Refuses && n.routes[key.VIP]
			}
		}
		return false
	}
	now := start
	pass := func(first, second bool, endpoints int) {
		t.Helper()
		for range 2 {
			mustPass(t, l, now)
			now = now.Add(time.Hour)
		}
		if serves(1) != first || serves(2) != second {
			t.Errorf("the Services are served: %t, %t; want %t, %t", serves(1), serves(2), first, second)
		}
		if got := n.observation.Unready; got.Endpoints != endpoints {
			t.Errorf("Unready = %+v, want %d endpoints", got, endpoints)
		}
	}
	pass(true, true, 0)
	current = unready(objects, 0)
	pass(false, true, 0)
	current = objects
	pass(true, true, 0)
	current = unready(objects, 0, 1)
	pass(true, true, 4)
	kept, _, _ := l.assembler.Readiness.Advance(current.EndpointSlices, func(string) bool { return true }, now)
	l = loopOf(kept)
	pass(true, true, 4)
	j.verdict = membership.Verdict{Down: map[forwarding.NodeID]time.Time{2: now}}
	j.known[0].Lost = now
	pass(false, false, 0)
	// A node that never replied may also have failed.
	j.verdict, j.known = membership.Verdict{}, nil
	pass(false, false, 0)
	current = objects
	pass(true, true, 0)
	if served := (readiness.Served{}); n.observation.Unready != served {
		t.Errorf("Unready = %+v, want zero", n.observation.Unready)
	}
}
