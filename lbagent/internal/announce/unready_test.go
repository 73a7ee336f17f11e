// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

func withoutEndpoint(m *model.Model) {
	for i := range m.Frontends {
		m.Frontends[i].Weights, m.Frontends[i].Endpoints = nil, nil
	}
}

// Announced Cluster VIPs without endpoints remain announced for the delay, others are withdrawn
// immediately.
func TestUnready(t *testing.T) {
	const delay = 2 * time.Second
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	both := map[netip.Addr]bool{vip4: true}
	for what, test := range map[string]struct {
		change    func(*model.Model)
		announced map[netip.Addr]bool
		after     time.Duration
		stays     bool
	}{
		"immediately":                      {withoutEndpoint, both, 0, true},
		"shortly before the delay":         {withoutEndpoint, both, delay - 1, true},
		"over":                             {withoutEndpoint, both, delay, false},
		"never announced":                  {withoutEndpoint, nil, 0, false},
		"has endpoints":                    {func(*model.Model) {}, both, delay, true},
		"Local":                            {func(m *model.Model) { withoutEndpoint(m); m.Frontends[0].Local = true }, both, 0, false},
		"Local, endpoints on another node": {func(m *model.Model) { m.Frontends[0].Local, m.Frontends[0].Endpoints = true, nil }, both, 0, false},
		"terminating, Local": {func(m *model.Model) {
			m.Frontends[0].Local, m.Frontends[0].Terminating = true, true
		}, both, 0, false},
		"no Service": {func(m *model.Model) { m.VIPs[0].Services, m.Frontends = nil, nil }, both, 0, false},
	} {
		t.Run(what, func(t *testing.T) {
			good := planned(base())
			m := base()
			test.change(m)
			u := &Unready{}
			u.Advance(m, nil, test.announced, delay, now)
			stay, again := u.Advance(m, nil, test.announced, delay, now.Add(test.after))
			node := nodeWith(good, good)
			node.Announced, node.Unready = test.announced, stay
			routes, decisions := Decide(m, node)
			if got := len(routes["r1"]) == 1; got != test.stays {
				t.Errorf("announced = %t: %+v", got, decisions[0])
			}
			if stay[vip4] != (again > 0) {
				t.Errorf("stay = %t, next check in %s", stay[vip4], again)
			}
		})
	}
}

// Only gaps longer than the delay withdraw a VIP. A new endpoint announces it immediately.
func TestUnreadyGaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const delay = 2 * time.Second
		good := planned(base())
		u := &Unready{}
		announced := map[netip.Addr]bool{}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var since time.Time
		var last *model.Model
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			m := base()
			ready := rapid.Bool().Draw(t, "ready")
			if !ready {
				withoutEndpoint(m)
			}
			if ready || !announced[vip4] {
				since = time.Time{}
			} else if since.IsZero() {
				since = now
			}
			var changes *model.Changes
			if last != nil && rapid.Bool().Draw(t, "changes are known") {
				changes = &model.Changes{Since: last, VIPs: []netip.Addr{vip4}}
			}
			last = m
			stay, _ := u.Advance(m, changes, announced, delay, now)
			node := nodeWith(good, good)
			node.Announced, node.Unready = maps.Clone(announced), stay
			routes, _ := Decide(m, node)
			want := ready || !since.IsZero() && now.Sub(since) < delay
			if got := len(routes["r1"]) == 1; got != want {
				t.Fatalf("announced = %t, want %t: ready %t, no ready pod since %s", got, want, ready, since)
			}
			announced = map[netip.Addr]bool{vip4: want}
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "milliseconds")) * time.Millisecond)
		}
	})
}
