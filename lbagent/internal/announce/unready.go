// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Unready delays the withdrawal of VIPs without usable endpoints, so that a failed probe causes no route
// flap. Connections are rejected meanwhile. The zero value is ready to use.
type Unready struct {
	since map[netip.Addr]time.Time
	// idle are VIPs of the last model with a Cluster frontend but without usable endpoints.
	model *model.Model
	idle  map[netip.Addr]bool
}

// Advance returns the VIPs that remain announced without endpoints and the duration until its next call is
// due, or 0. VIPs with only Local frontends are not delayed, because other nodes may have
// endpoints.
func (u *Unready) Advance(
	m *model.Model, changes *model.Changes, announced map[netip.Addr]bool, delay time.Duration, now time.Time,
) (stay map[netip.Addr]bool, again time.Duration) {
	u.update(m, changes)
	since := map[netip.Addr]time.Time{}
	stay = map[netip.Addr]bool{}
	for vip := range u.idle {
		if !announced[vip] {
			continue
		}
		at, known := u.since[vip]
		if !known {
			at = now
		}
		since[vip] = at
		left := at.Add(delay).Sub(now)
		if left <= 0 {
			continue
		}
		stay[vip] = true
		if again == 0 || left < again {
			again = left
		}
	}
	u.since = since
	return stay, again
}

func (u *Unready) update(m *model.Model, changes *model.Changes) {
	if changes != nil && changes.Since == u.model && u.model != nil {
		for _, vip := range changes.VIPs {
			u.record(vip, m.FrontendsOf(vip))
		}
	} else {
		u.idle = map[netip.Addr]bool{}
		var own []*model.Frontend
		for rest := m.Frontends; len(rest) > 0; {
			own, rest = frontendsOf(rest[0].Key.VIP, rest)
			u.record(own[0].Key.VIP, own)
		}
	}
	u.model = m
}

func (u *Unready) record(vip netip.Addr, frontends []*model.Frontend) {
	isCluster := func(f *model.Frontend) bool { return !f.Local }
	if slices.ContainsFunc(frontends, isCluster) && !slices.ContainsFunc(frontends, acceptsConnections) {
		u.idle[vip] = true
	} else {
		delete(u.idle, vip)
	}
}

// isUnserved reports whether no frontend can serve new connections and the VIP is not in its delay.
func isUnserved(vip netip.Addr, frontends []*model.Frontend, node *Node) bool {
	return !node.Unready[vip] && !slices.ContainsFunc(frontends, acceptsConnections)
}
