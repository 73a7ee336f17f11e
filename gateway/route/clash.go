// SPDX-License-Identifier: Apache-2.0

package route

import (
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// claims are the host names of the routes of one kind at a listener. They find the oldest route
// that has a host in common with a name by a look-up for each of its labels.
type claims struct {
	// at has the oldest route of each name, under that of each wildcard that matches a name.
	at, under map[hostname]claim
}

// claim is a name of a route.
type claim struct {
	route *route
	host  hostname
}

func newClaims() *claims {
	return &claims{at: map[hostname]claim{}, under: map[hostname]claim{}}
}

// add adds an attachment. Those of older routes come first.
func (c *claims) add(of attachment) {
	for _, host := range of.hosts {
		mine := claim{of.route, host}
		if _, known := c.at[host]; !known {
			c.at[host] = mine
		}
		for wider := host; wider != ""; {
			wider = wider.wider()
			if _, known := c.under[wider]; !known {
				c.under[wider] = mine
			}
		}
	}
}

// oldest gives the oldest route that has a host in common with the names, and that host.
func (c *claims) oldest(hosts []hostname) (found claim, known bool) {
	for _, host := range hosts {
		look := func(in map[hostname]claim, name hostname) {
			other, has := in[name]
			if has && (!known || other.route.age < found.route.age) {
				both, _ := intersect(host, other.host)
				found, known = claim{other.route, both}, true
			}
		}
		for wider := host; ; wider = wider.wider() {
			look(c.at, wider)
			if wider == "" {
				break
			}
		}
		if host == "" || host.wildcard() {
			look(c.under, host)
		}
	}
	return found, known
}

// otherKind is the kind that cannot share a host name with a kind; "" for those that have none.
var otherKind = map[string]string{kindHTTPRoute: kindGRPCRoute, kindGRPCRoute: kindHTTPRoute}

// clash tells which older route of the other kind has a host name of an HTTPRoute or a
// GRPCRoute (Gateway API: GRPCRoute, cross serving): only one kind can have it.
func (l *listener) clash(of *route, hosts []hostname) *refusal {
	other := otherKind[of.kind]
	if other == "" || !slices.Contains(l.has, other) {
		return nil
	}
	older, clashes := l.claimsOf(other).oldest(hosts)
	if !clashes {
		return nil
	}
	return refuse(ReasonConflict, gatewayv1.RouteReasonNotAllowedByListeners,
		"spec.hostnames: %s %s/%s is older and has %s, too", older.route.kind,
		older.route.object.GetNamespace(), older.route.object.GetName(), displayed(older.host))
}

// claimsOf are the names that routes of a kind have. Most listeners have routes of one kind, and
// are only asked for those of the other one.
func (l *listener) claimsOf(kind string) *claims {
	if l.claims[kind] == nil {
		if l.claims == nil {
			l.claims = map[string]*claims{}
		}
		l.claims[kind] = newClaims()
		for _, attached := range l.attachments {
			if attached.route.kind == kind {
				l.claim(attached)
			}
		}
	}
	return l.claims[kind]
}

// claim notes the names of an attachment where somebody has asked for those of its kind. A route
// that is not accepted keeps no other out.
func (l *listener) claim(of attachment) {
	if !slices.Contains(l.has, of.route.kind) {
		l.has = append(l.has, of.route.kind)
	}
	if known := l.claims[of.route.kind]; known != nil && of.route.accepted == nil {
		known.add(of)
	}
}
