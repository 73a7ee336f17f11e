// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// holds reports whether the maps hold an aggregate. One that was refused, or has no room, they
// do not.
func holds(programmed *forwarding.State, aggregate netip.Prefix) bool {
	_, found := programmed.SourceRanges[forwarding.SourceRange{Set: forwarding.Aggregates, Prefix: aggregate}]
	return found
}

// gathering are the routes of VIPs by the name of the LBPeer.
type gathering map[string]*gatheredRoutes

// gatheredRoutes are the routes for a peer. Aggregates are the places of those that several VIPs
// may ask for.
type gatheredRoutes struct {
	list       []gathered
	aggregates map[netip.Prefix]int
}

// gathered is a route that one or more VIPs ask for.
type gathered struct {
	route         Route
	advertisement *model.Advertisement
	peer          *model.Peer
	// leaving is true where all of the VIPs are to be left.
	leaving bool
}

// add takes the route of a VIP. Of several VIPs of an aggregate the advertisement that is first
// by name says the attributes.
func (g gathering) add(target model.Target, route Route, leaving bool) {
	peer := target.Peer
	routes := g[peer.Name]
	if routes == nil {
		routes = &gatheredRoutes{aggregates: map[netip.Prefix]int{}}
		g[peer.Name] = routes
	}
	at, found := routes.aggregates[route.Prefix]
	if !found {
		if !route.Prefix.IsSingleIP() {
			routes.aggregates[route.Prefix] = len(routes.list)
		}
		routes.list = append(routes.list, gathered{
			route: route, advertisement: target.Advertisement, peer: peer, leaving: leaving,
		})
		return
	}
	have := &routes.list[at]
	have.leaving = have.leaving && leaving
	if target.Advertisement.Name < have.advertisement.Name {
		have.route, have.advertisement = route, target.Advertisement
	}
}

func (g gathering) routes() Routes {
	routes := Routes{}
	for peer, all := range g {
		slices.SortFunc(all.list, func(a, b gathered) int { return a.route.Prefix.Compare(b.route.Prefix) })
		routes[peer] = make([]Route, 0, len(all.list))
		for i := range all.list {
			routes[peer] = append(routes[peer], finished(all.list[i].route, all.list[i].peer, all.list[i].leaving))
		}
	}
	return routes
}

// finished is a route as it is announced to a peer.
func finished(route Route, peer *model.Peer, leaving bool) Route {
	if leaving {
		return route.left(!peer.External())
	}
	return route
}

// routeTo is the route of a VIP by itself.
func routeTo(target model.Target, m *model.Model, vip netip.Addr) Route {
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
