// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// holds reports whether the maps contain the aggregate. A rejected aggregate or one without room is absent.
func holds(programmed *forwarding.State, aggregate netip.Prefix) bool {
	_, found := programmed.SourceRanges[forwarding.SourceRange{Set: forwarding.Aggregates, Prefix: aggregate}]
	return found
}

type gathering map[string]*gatheredRoutes

// gatheredRoutes are the routes of one peer; aggregates are indexes into list.
type gatheredRoutes struct {
	list       []gathered
	aggregates map[netip.Prefix]int
}

type gathered struct {
	route         Route
	advertisement *model.Advertisement
	peer          *model.Peer
	// leaving is true if all VIPs of the route are leaving.
	leaving bool
}

// add adds the route of a VIP. An aggregate takes its attributes from the first advertisement by name.
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

func finished(route Route, peer *model.Peer, leaving bool) Route {
	if leaving {
		return route.left(!peer.External())
	}
	return route
}

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
