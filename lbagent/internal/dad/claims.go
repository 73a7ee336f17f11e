// SPDX-License-Identifier: Apache-2.0

package dad

import (
	"maps"
	"net"
	"time"
)

const (
	// claimPeriod is the minimum period between the first and the last announcement of a duplicate. The
	// previous and the next node that answer for a VIP may both announce it for a moment.
	claimPeriod = 5 * time.Second
	// claimLifetime is how long a host counts as a duplicate after its last announcement.
	claimLifetime = 2 * time.Minute
	// maxClaims bounds the recorded hosts.
	maxClaims = 1024
)

// claims are the announcements of other hosts that answer no probes, by VIP and link.
type claims map[Probe]announcements

type announcements struct {
	from        net.HardwareAddr
	first, last time.Time
}

func (a announcements) isDuplicate(now time.Time) bool {
	return a.last.Sub(a.first) >= claimPeriod && now.Sub(a.last) < claimLifetime
}

// add records an announcement and reports whether the host became a duplicate. A host is recorded until it has
// been silent, so that a host with many addresses causes no changes.
func (c claims) add(of Probe, from net.HardwareAddr, now time.Time) (news bool) {
	maps.DeleteFunc(c, func(_ Probe, a announcements) bool { return now.Sub(a.last) >= claimLifetime })
	known, found := c[of]
	if !found {
		if len(c) >= maxClaims {
			return false
		}
		known = announcements{from: from, first: now}
	}
	before := found && known.isDuplicate(now)
	known.last = now
	c[of] = known
	return known.isDuplicate(now) && !before
}

// addTo returns the answers of hosts with the duplicates that answered no probe, and the delay until one of
// these expires, or 0.
func (c claims) addTo(answers map[Probe]Answer, now time.Time) (_ map[Probe]Answer, again time.Duration) {
	copied := false
	for of, claim := range c {
		if !claim.isDuplicate(now) || len(answers[of].HardwareAddr) > 0 {
			continue
		}
		if !copied {
			answers, copied = maps.Clone(answers), true
			if answers == nil {
				answers = map[Probe]Answer{}
			}
		}
		answers[of] = Answer{HardwareAddr: claim.from}
		if left := claim.last.Add(claimLifetime).Sub(now); again == 0 || left < again {
			again = left
		}
	}
	return answers, again
}
