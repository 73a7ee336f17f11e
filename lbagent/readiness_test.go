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

// unready is a snapshot with endpoints of some of its Services not ready.
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

// When an API server comes back that was away for long, all pods are unready for a moment. Nothing
// is refused and no route goes, also with an agent that started meanwhile. A node that does not
// answer gets nothing; one Service alone is refused as ever.
func TestAllUnreadyAtOnce(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 1)
	addService(objects, 2, false, 1, 1)
	current := objects
	j := &judge{known: []membership.Known{{ID: 2}}}
	loopOf := func(previous []*discoveryv1.EndpointSlice) *loop {
		l := newLoop(n, nil)
		l.inputs.Objects = func() *model.Snapshot { return current }
		l.watch, l.inputs.Readiness = watchBy(j), readiness.New(previous)
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
		// Longer than any delay.
		for range 2 {
			mustPass(t, l, now)
			now = now.Add(time.Hour)
		}
		if serves(1) != first || serves(2) != second {
			t.Errorf("the Services are served: %t, %t; want %t, %t", serves(1), serves(2), first, second)
		}
		if got := n.observation.Unready; got.Endpoints != endpoints {
			t.Errorf("served unready are %+v, want %d", got, endpoints)
		}
	}
	pass(true, true, 0)
	current = unready(objects, 0)
	pass(false, true, 0)
	current = objects
	pass(true, true, 0)
	current = unready(objects, 0, 1)
	pass(true, true, 4)
	// What the agent worked by is kept for the next one.
	kept, _, _ := l.inputs.Readiness.Advance(current.EndpointSlices, func(string) bool { return true }, now)
	l = loopOf(kept)
	pass(true, true, 4)
	j.verdict = membership.Verdict{Down: map[forwarding.NodeID]time.Time{2: now}}
	j.known[0].Lost = now
	pass(false, false, 0)
	// One that never answered may be dead, too.
	j.verdict, j.known = membership.Verdict{}, nil
	pass(false, false, 0)
	current = objects
	pass(true, true, 0)
	if served := (readiness.Served{}); n.observation.Unready != served {
		t.Errorf("served unready are %+v", n.observation.Unready)
	}
}
