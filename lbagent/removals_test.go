// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
)

// Mistaken bulk removals withdraw nothing before the end of the hold, and apply afterwards.
func TestMistakenRemovals(t *testing.T) {
	const limit = time.Minute
	for what, remove := range map[string]func(*model.Snapshot){
		"the peers":          func(s *model.Snapshot) { s.Peers = nil },
		"the advertisements": func(s *model.Snapshot) { s.Advertisements = nil },
		"the nodes":          func(s *model.Snapshot) { s.LBNodes = nil },
		"the VIPs":           func(s *model.Snapshot) { s.VIPs = nil },
		"all of them":        func(s *model.Snapshot) { s.Peers, s.Advertisements, s.LBNodes, s.VIPs = nil, nil, nil, nil },
	} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t)
			objects := cluster()
			addService(objects, 1, false, 1, 1)
			current := objects
			l := newLoop(n, nil)
			l.assembler.Objects = func() *model.Snapshot { return current }
			l.assembler.Guard = removalguard.New(limit, nil)
			mustPass(t, l, start)
			if !n.routes[vipOf(1)] {
				t.Fatal("not announced")
			}
			rest := *objects
			remove(&rest)
			current = &rest
			for after := time.Duration(0); after < limit; after += limit / 4 {
				if again := mustPass(t, l, start.Add(after)); again == 0 || again > limit {
					t.Errorf("next pass in %s", again)
				}
				if !n.routes[vipOf(1)] || len(n.state.Frontends) != 1 {
					t.Fatalf("released %s after the removal", after)
				}
				if len(n.observation.Held) == 0 {
					t.Error("no condition reports the held objects")
				}
			}
			mustPass(t, l, start.Add(limit))
			if n.routes[vipOf(1)] || len(n.observation.Held) != 0 {
				t.Errorf("after the hold time: announced = %t, held = %v", n.routes[vipOf(1)], n.observation.Held)
			}
		})
	}
}
