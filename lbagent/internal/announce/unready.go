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
}

// Advance returns the VIPs that stay announced without an endpoint, and after how long Advance is
// due again; 0 means it is not. These are announced VIPs with a frontend of policy Cluster. For
// Local there is no delay: other nodes may have endpoints, and packets are lost that come here.
func (u *Unready) Advance(
	m *model.Model, announced map[netip.Addr]bool, delay time.Duration, now time.Time,
) (stay map[netip.Addr]bool, again time.Duration) {
	since := map[netip.Addr]time.Time{}
	stay = map[netip.Addr]bool{}
	for rest := m.Frontends; len(rest) > 0; {
		vip := rest[0].Key.VIP
		own := 0
		cluster, usable := false, false
		for ; own < len(rest) && rest[own].Key.VIP == vip; own++ {
			cluster = cluster || !rest[own].Local
			usable = usable || attracts(rest[own])
		}
		rest = rest[own:]
		if usable || !cluster || !announced[vip] {
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

// attractsNobody reports whether no frontend of a VIP has what new connections need, and the VIP
// is not to stay for that.
func attractsNobody(vip netip.Addr, frontends []*model.Frontend, node *Node) bool {
	return !node.Unready[vip] && !slices.ContainsFunc(frontends, attracts)
}
