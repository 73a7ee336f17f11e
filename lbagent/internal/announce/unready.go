// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Unready are the announced VIPs that have no usable endpoint anywhere. They stay announced for a
// while: a probe that fails once makes no route go and come back on every router. What comes to
// such a VIP meanwhile is refused, as Kubernetes has it. The zero value knows of none.
type Unready struct {
	since map[netip.Addr]time.Time
	// idle are the VIPs of the last model with a frontend of policy Cluster and no usable endpoint.
	model *model.Model
	idle  map[netip.Addr]bool
}

// Advance returns the VIPs that stay announced without an endpoint, and after how long Advance is
// due again; 0 means it is not. These are announced VIPs with a frontend of policy Cluster. For
// Local there is no delay: other nodes may have endpoints, and packets are lost that come here.
func (u *Unready) Advance(
	m *model.Model, changes *model.Changes, announced map[netip.Addr]bool, delay time.Duration, now time.Time,
) (stay map[netip.Addr]bool, again time.Duration) {
	u.look(m, changes)
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

// look notes the idle VIPs of a model, given how it differs from the one before.
func (u *Unready) look(m *model.Model, changes *model.Changes) {
	if changes != nil && changes.Since == u.model && u.model != nil {
		for _, vip := range changes.VIPs {
			u.note(vip, m.FrontendsOf(vip))
		}
	} else {
		u.idle = map[netip.Addr]bool{}
		var own []*model.Frontend
		for rest := m.Frontends; len(rest) > 0; {
			own, rest = frontendsOf(rest[0].Key.VIP, rest)
			u.note(own[0].Key.VIP, own)
		}
	}
	u.model = m
}

func (u *Unready) note(vip netip.Addr, frontends []*model.Frontend) {
	isCluster := func(f *model.Frontend) bool { return !f.Local }
	if slices.ContainsFunc(frontends, isCluster) && !slices.ContainsFunc(frontends, attracts) {
		u.idle[vip] = true
	} else {
		delete(u.idle, vip)
	}
}

// attractsNobody reports whether no frontend of a VIP has what new connections need, and the VIP
// is not to stay for that.
func attractsNobody(vip netip.Addr, frontends []*model.Frontend, node *Node) bool {
	return !node.Unready[vip] && !slices.ContainsFunc(frontends, attracts)
}
