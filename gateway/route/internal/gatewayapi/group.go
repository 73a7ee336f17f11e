// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

type hostRoutes struct {
	listeners []string
	host      ownership.Host
	routes    []*route
}

// addGroups adds a route group for each host name. Listeners with the same routes share it.
func (g *gateway) addGroups() {
	// The previous result has about one listener, group and backend per group.
	room := len(g.proxy.Last) / 3
	groups := make(map[string]*hostRoutes, room)
	for _, listener := range g.listeners {
		if !listener.programmed() || listener.layer4() {
			continue
		}
		for host, routes := range listener.byHost() {
			signature := signatureOf(host, routes)
			if groups[signature] == nil {
				groups[signature] = &hostRoutes{host: host, routes: routes}
			}
			groups[signature].listeners = append(groups[signature].listeners, listener.name)
		}
	}
	merged := make(map[string][]*resource.Rule, room/2)
	for _, signature := range slices.Sorted(maps.Keys(groups)) {
		found := groups[signature]
		routes := signatureOf("", found.routes)
		if _, known := merged[routes]; !known {
			merged[routes] = mergeRules(found.routes)
			for _, route := range found.routes {
				for _, backend := range route.backends {
					g.proxy.Use(backend)
				}
			}
		}
		name := "group/" + strings.TrimPrefix(found.listeners[0], "listener/") + "/" + string(found.host)
		g.proxy.Group(name, &resource.RouteGroup{
			Listeners: found.listeners,
			Hostname:  found.host.Resource(resource.Hostname_LABELS),
			Rules:     merged[routes],
		})
	}
}

func (g *gateway) services() map[types.NamespacedName]bool {
	seen := map[*route]bool{}
	found := map[types.NamespacedName]bool{}
	for _, listener := range g.listeners {
		if !listener.programmed() || listener.layer4() {
			continue
		}
		for _, attachment := range listener.attachments {
			of := listener.effectiveRoute(attachment)
			if seen[of] {
				continue
			}
			seen[of] = true
			for _, backend := range of.backends {
				found[types.NamespacedName{Namespace: backend.Service.Namespace, Name: backend.Service.Name}] = true
			}
		}
	}
	return found
}

func (l *listener) effectiveRoute(of attachment) *route {
	if of.route.tls != nil && !l.passthrough() {
		return of.route.tls
	}
	if l.gateway.budget.Closed[of.route.object.GetNamespace()] {
		return of.route.closed(false)
	}
	return of.route
}

func (l *listener) byHost() map[ownership.Host][]*route {
	found := make(map[ownership.Host][]*route, len(l.attachments))
	for _, attachment := range l.attachments {
		of := l.effectiveRoute(attachment)
		for _, host := range attachment.hosts {
			if routes := found[host]; len(routes) == 0 || routes[len(routes)-1] != of {
				found[host] = append(routes, of)
			}
		}
	}
	return found
}

func signatureOf(host ownership.Host, routes []*route) string {
	signature := append([]byte(host), 0)
	for _, found := range routes {
		signature = binary.AppendUvarint(signature, uint64(found.age))
	}
	return string(signature)
}

// mergeRules returns rules by precedence. Rules with the same rank are ordered by the age of their routes.
func mergeRules(routes []*route) []*resource.Rule {
	var ordered []*orderedRule
	for _, found := range routes {
		ordered = append(ordered, found.rules...)
	}
	if len(routes) > 1 {
		slices.SortStableFunc(ordered, compareRank)
	}
	rules := make([]*resource.Rule, 0, len(ordered))
	for _, found := range ordered {
		rules = append(rules, found.rule)
	}
	return rules
}

func compareRank(a, b *orderedRule) int {
	return slices.Compare(b.rank[:], a.rank[:])
}
