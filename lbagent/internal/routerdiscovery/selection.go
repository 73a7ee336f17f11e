// SPDX-License-Identifier: Apache-2.0

package routerdiscovery

import (
	"net/netip"
	"time"
)

const (
	// solicitInterval is the interval of router solicitations until a router is found (RTR_SOLICITATION_INTERVAL
	// of RFC 4861, section 10). Their number is not limited, because routers can boot after the node.
	solicitInterval = 4 * time.Second
	// A router that answers none of maxProbes neighbor solicitations is replaced by another one (RETRANS_TIMER
	// and MAX_UNICAST_SOLICIT of RFC 4861, section 10).
	maxProbes     = 3
	probeInterval = time.Second
)

// selection selects the router of an interface. The first advertiser remains the router as long as it answers
// neighbor solicitations, so that no other host of the link can take over the session by advertisements.
type selection struct {
	router, replacement netip.Addr
	// probes is the number of neighbor solicitations sent since the first advertisement of replacement.
	probes int
	// due is the time of the next call of expire, or zero.
	due time.Time
}

// advertised handles a router advertisement.
func (s *selection) advertised(source netip.Addr, now time.Time) {
	switch {
	case !s.router.IsValid():
		*s = selection{router: source}
	case s.router == source:
		s.answered(source)
	case !s.replacement.IsValid():
		s.replacement, s.due = source, now
	}
}

// answered handles a sign of life of source.
func (s *selection) answered(source netip.Addr) {
	if source == s.router {
		*s = selection{router: source}
	}
}

// expire handles the expiry of due. It returns whether to solicit routers, or the router to probe, if any.
func (s *selection) expire(now time.Time) (solicit bool, probe netip.Addr) {
	switch {
	case !s.router.IsValid():
		s.due = now.Add(solicitInterval)
		return true, netip.Addr{}
	case s.probes == maxProbes:
		*s = selection{router: s.replacement}
		return false, netip.Addr{}
	default:
		s.probes++
		s.due = now.Add(probeInterval)
		return false, s.router
	}
}
