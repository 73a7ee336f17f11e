// SPDX-License-Identifier: Apache-2.0

package route

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

// protectOwners refuses listeners of ListenerSets that would override the certificates, passthrough or
// routes of host names of older objects of other namespaces: of routes at the Gateway's own listeners of
// the port, and of wildcards of older ListenerSets. The Gateway's namespace controls all of its hosts.
func (c *compilation) protectOwners(of *gateway, routes []*route) {
	claims, wildcards := map[int32]*ownership.Claims[*route]{}, map[portHost]*listener{}
	for _, found := range of.listeners {
		if found.ownerKind != kindListenerSet || found.owner.GetNamespace() == of.object.Namespace || found.layer4() || found.accepted != nil {
			continue
		}
		port := found.spec.Port
		if claims[port] == nil {
			claims[port] = c.claimsAt(of, routes, port)
		}
		older, _, known := claims[port].Oldest([]hostname{found.host})
		clashes := known && isOwnedBefore(older.object, found.owner)
		for wider := found.host.Wider(); found.host != "" && wider != ""; wider = wider.Wider() {
			other := wildcards[portHost{port, wider}]
			clashes = clashes || other != nil && other.owner.GetNamespace() != found.owner.GetNamespace()
		}
		if clashes {
			found.conflict = refuse(ReasonConflict, gatewayv1.ListenerReasonHostnameConflict, "hostname: "+hostOwned)
		} else if at := (portHost{port, found.host}); found.host.IsWildcard() && wildcards[at] == nil {
			wildcards[at] = found
		}
	}
}

func isOwnedBefore(other, of metav1.Object) bool {
	return other.GetNamespace() != of.GetNamespace() && desired.CompareAge(other, of) < 0
}

type portHost struct {
	port int32
	host hostname
}

// claimsAt returns the host names of routes at the Gateway's own listeners of a port, without names for all
// hosts.
func (c *compilation) claimsAt(of *gateway, routes []*route, port int32) *ownership.Claims[*route] {
	claims := ownership.NewClaims[*route]()
	for age, each := range routes {
		for _, parent := range each.parents {
			listeners, ours := c.parentListeners(each, parent)
			if !ours || len(listeners) == 0 || listeners[0].gateway != of || listeners[0].ownerKind != kindGateway {
				continue
			}
			for _, at := range listeners {
				if at.spec.Port == port && at.isSelectedBy(parent) && at.allows(each.kind) && at.namespaces(each.object.GetNamespace()) {
					claims.Add(each, age, withoutCatchAll(at.intersection(each.hosts)))
				}
			}
		}
	}
	return claims
}

func withoutCatchAll(hosts []hostname) []hostname {
	found := hosts[:0:0]
	for _, host := range hosts {
		if host != "" {
			found = append(found, host)
		}
	}
	return found
}
