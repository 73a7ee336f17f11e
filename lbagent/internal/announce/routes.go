// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// containsAggregate reports whether the maps contain the aggregate. A rejected aggregate or one without room is absent.
func containsAggregate(programmed *forwarding.State, aggregate netip.Prefix) bool {
	_, found := programmed.SourceRanges[forwarding.SourceRange{Set: forwarding.Aggregates, Prefix: aggregate}]
	return found
}

type routeSet map[string]*peerRoutes

// peerRoutes are the routes of one peer; aggregates are indexes into list.
type peerRoutes struct {
	list       []collectedRoute
	aggregates map[netip.Prefix]int
}

type collectedRoute struct {
	route         Route
	advertisement *model.Advertisement
	peer          *model.Peer
	// draining is true if all VIPs of the route are draining.
	draining bool
}

// add adds the route of a VIP. An aggregate takes its attributes from the first advertisement by name.
func (g routeSet) add(target model.Target, route Route, draining bool) {
	peer := target.Peer
	routes := g[peer.Name]
	if routes == nil {
		routes = &peerRoutes{aggregates: map[netip.Prefix]int{}}
		g[peer.Name] = routes
	}
	at, found := routes.aggregates[route.Prefix]
	if !found {
		if !route.Prefix.IsSingleIP() {
			routes.aggregates[route.Prefix] = len(routes.list)
		}
		routes.list = append(routes.list, collectedRoute{
			route: route, advertisement: target.Advertisement, peer: peer, draining: draining,
		})
		return
	}
	have := &routes.list[at]
	have.draining = have.draining && draining
	if target.Advertisement.Name < have.advertisement.Name {
		have.route, have.advertisement = route, target.Advertisement
	}
}

func (g routeSet) routes() Routes {
	routes := Routes{}
	for peer, all := range g {
		slices.SortFunc(all.list, func(a, b collectedRoute) int { return a.route.Prefix.Compare(b.route.Prefix) })
		routes[peer] = make([]Route, 0, len(all.list))
		for i := range all.list {
			routes[peer] = append(routes[peer], finished(all.list[i].route, all.list[i].peer, all.list[i].draining))
		}
	}
	return routes
}

func finished(route Route, peer *model.Peer, leaving bool) Route {
	if leaving {
		return route.withGracefulShutdown(!peer.External())
	}
	return route
}

func newRoute(target model.Target, m *model.Model, vip netip.Addr) Route {
	advertisement := target.Advertisement
	route := Route{
		Prefix:           netip.PrefixFrom(vip, vip.BitLen()),
		NextHop:          nextHop(m, target.Peer, vip),
		Communities:      advertisement.Communities,
		LargeCommunities: advertisement.LargeCommunities,
		MED:              advertisement.MED,

		ExtendedCommunities: advertisement.ExtendedCommunities,
	}
	if target.Peer.External() {
		route.Prepend = advertisement.Prepend
	} else {
		route.LocalPreference = advertisement.LocalPreference
	}
	return route
}
