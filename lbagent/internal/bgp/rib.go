// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
)

// table is an Adj-RIB-Out (RFC 4271, section 3.2): routes sorted by prefix. It is immutable and shares the
// memory of Want, so that a session has two tables, the wanted one and the sent one, and the UPDATEs
// are their difference.
type table []announce.Route

// newTable sorts a copy of the routes, if necessary.
func newTable(routes []announce.Route) table {
	byPrefix := func(a, b announce.Route) int { return a.Prefix.Compare(b.Prefix) }
	if !slices.IsSortedFunc(routes, byPrefix) {
		routes = slices.SortedFunc(slices.Values(routes), byPrefix)
	}
	return routes
}

// count returns the number of routes of a family.
func (t table) count(is4 bool) (count int) {
	for i := range t {
		if t[i].Prefix.Addr().Is4() == is4 {
			count++
		}
	}
	return count
}

// families is a set of address families, all unicast.
type families struct{ ipv4, ipv6 bool }

func (f families) intersect(other families) families {
	return families{ipv4: f.ipv4 && other.ipv4, ipv6: f.ipv6 && other.ipv6}
}

func (f families) union(other families) families {
	return families{ipv4: f.ipv4 || other.ipv4, ipv6: f.ipv6 || other.ipv6}
}

// carried are the routes that a session can carry: of its families, with IPv6 next hops of IPv4 routes only
// if the router accepts them (RFC 8950, section 4).
type carried struct {
	families
	extended bool
}

func (c carried) has(route *announce.Route) bool {
	if route.Prefix.Addr().Is6() {
		return c.ipv6
	}
	return c.ipv4 && (c.extended || route.NextHop.Is4())
}

// difference returns the prefixes to withdraw and the routes to announce to a router that has the routes of
// sent and is to have the routes of want.
func (c carried) difference(sent, want table) (withdrawn []netip.Prefix, announced []*announce.Route) {
	if delta.IsSame(sent, want) {
		return nil, nil
	}
	for i, j := 0, 0; i < len(sent) || j < len(want); {
		order := 0
		switch {
		case i == len(sent):
			order = 1
		case j == len(want):
			order = -1
		default:
			order = sent[i].Prefix.Compare(want[j].Prefix)
		}
		var old, route *announce.Route
		if order <= 0 {
			old = &sent[i]
			i++
		}
		if order >= 0 {
			route = &want[j]
			j++
		}
		switch has := old != nil && c.has(old); {
		case route != nil && c.has(route):
			if !has || !old.Equal(route) {
				announced = append(announced, route)
			}
		case has:
			withdrawn = append(withdrawn, old.Prefix)
		}
	}
	return withdrawn, announced
}
