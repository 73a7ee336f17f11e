// SPDX-License-Identifier: Apache-2.0

package route

import (
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

// otherKind is the kind that cannot share a host name with a kind; "" for those that have none.
var otherKind = map[string]string{kindHTTPRoute: kindGRPCRoute, kindGRPCRoute: kindHTTPRoute}

// clash refuses an HTTPRoute or a GRPCRoute if an older route of the other kind has one of its host names
// (Gateway API: GRPCRoute, cross serving).
func (l *listener) clash(of *route, hosts []hostname) *refusal {
	other := otherKind[of.kind]
	if other == "" || !slices.Contains(l.has, other) {
		return nil
	}
	older, host, clashes := l.claimsOf(other).Oldest(hosts)
	if !clashes {
		return nil
	}
	return refuse(ReasonConflict, gatewayv1.RouteReasonNotAllowedByListeners,
		"spec.hostnames: %s %s/%s is older and has %s, too", older.kind,
		older.object.GetNamespace(), older.object.GetName(), host)
}

// claimsOf returns the host names of the routes of a kind. Most listeners have routes of one kind, and
// need the claims of the other kind only.
func (l *listener) claimsOf(kind string) *ownership.Claims[*route] {
	if l.claims[kind] == nil {
		if l.claims == nil {
			l.claims = map[string]*ownership.Claims[*route]{}
		}
		l.claims[kind] = ownership.NewClaims[*route]()
		for _, attached := range l.attachments {
			if attached.route.kind == kind {
				l.claim(attached)
			}
		}
	}
	return l.claims[kind]
}

// claim adds the host names of an attachment to the claims of its kind, if these are in use. A route that
// is not accepted keeps no other out.
func (l *listener) claim(of attachment) {
	if !slices.Contains(l.has, of.route.kind) {
		l.has = append(l.has, of.route.kind)
	}
	if known := l.claims[of.route.kind]; known != nil && of.route.accepted == nil {
		known.Add(of.route, of.route.age, of.hosts)
	}
}
