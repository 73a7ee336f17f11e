// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

type portUse struct {
	// first is the first listener of the port. Further listeners must be compatible with it.
	first *listener
	hosts map[ownership.Host]*listener
}

type transport struct {
	port      int32
	datagrams bool
}

func (l *listener) transport() transport {
	return transport{l.spec.Port, l.spec.Protocol == gatewayv1.UDPProtocolType}
}

// maxPorts limits the ports of a Gateway and its ListenerSets. Each is a port of the Service and a socket of
// every proxy.
const maxPorts = 256

// conflicts refuses conflicting listeners, and listeners beyond maxPorts. If listeners of the Gateway itself
// conflict, all of them are refused. A listener of a ListenerSet is refused if it conflicts with a listener
// of the Gateway or of an older ListenerSet.
func conflicts(listeners []*listener) {
	ownConflicts(listeners)
	uses := map[transport]*portUse{}
	for _, found := range listeners {
		if found.accepted != nil || found.conflict != nil {
			continue
		}
		use := uses[found.transport()]
		if use == nil && len(uses) == maxPorts {
			found.accepted = builder.Refuse(model.ReasonUnsupported, gatewayv1.ListenerReasonPortUnavailable,
				"port: the Gateway and its older ListenerSets use %d ports, the maximum", maxPorts)
			continue
		}
		if use == nil {
			use = &portUse{first: found, hosts: map[ownership.Host]*listener{}}
			uses[found.transport()] = use
		} else {
			found.conflict = use.conflict(found)
		}
		if found.conflict == nil {
			use.hosts[found.host] = found
		}
	}
	for _, use := range uses {
		use.overlaps()
	}
}

func ownConflicts(listeners []*listener) {
	var own []*listener
	for _, found := range listeners {
		if found.ownerKind == model.KindGateway && found.accepted == nil {
			own = append(own, found)
		}
	}
	for _, found := range own {
		for _, other := range own {
			if other != found && found.conflict == nil {
				found.conflict = conflict(found, other)
			}
		}
	}
}

func (u *portUse) conflict(found *listener) *builder.Refusal {
	if refused := conflict(found, u.first); refused != nil {
		return refused
	}
	if other := u.hosts[found.host]; other != nil {
		return conflict(found, other)
	}
	return nil
}

func conflict(a, b *listener) *builder.Refusal {
	if a.transport() != b.transport() {
		return nil
	}
	if family(a) != family(b) || a.layer4() {
		return builder.Refuse(model.ReasonConflict, gatewayv1.ListenerReasonProtocolConflict,
			"port: %s has the same port and protocol %s", a.nameOf(b), b.spec.Protocol)
	}
	if a.host != b.host {
		return nil
	}
	reason := gatewayv1.ListenerReasonHostnameConflict
	if a.spec.Protocol != b.spec.Protocol {
		reason = gatewayv1.ListenerReasonProtocolConflict
	}
	return builder.Refuse(model.ReasonConflict, reason, "hostname: %s has the same host name and port", a.nameOf(b))
}

// nameOf returns a description of another listener for messages. It does not reveal names of other
// namespaces.
func (l *listener) nameOf(other *listener) string {
	if other.ownerKind == model.KindListenerSet && other.owner.GetNamespace() != l.owner.GetNamespace() {
		return "a listener of an older object of another namespace"
	}
	return fmt.Sprintf("listener %s of %s %s/%s", other.spec.Name, other.ownerKind, other.owner.GetNamespace(), other.owner.GetName())
}

// family returns the protocol for comparisons. HTTPS and TLS are equal, because they can share a port by
// server name.
func family(l *listener) gatewayv1.ProtocolType {
	if l.spec.Protocol == gatewayv1.HTTPSProtocolType {
		return gatewayv1.TLSProtocolType
	}
	return l.spec.Protocol
}

// overlaps marks HTTPS listeners of a port that have overlapping host names, because clients may reuse a
// connection to one for the other (Gateway API: OverlappingTLSConfig).
func (u *portUse) overlaps() {
	for host, found := range u.hosts {
		if found.spec.Protocol != gatewayv1.HTTPSProtocolType || host == "" {
			continue
		}
		for wider := host.Wider(); ; wider = wider.Wider() {
			if other := u.hosts[wider]; other != nil && other.spec.Protocol == gatewayv1.HTTPSProtocolType {
				found.overlaps, other.overlaps = true, true
			}
			if wider == "" {
				break
			}
		}
	}
}

// protectOwners refuses listeners of ListenerSets that would override the certificates, passthrough or routes
// of host names that belong to older objects of other namespaces. These are the host names of routes at the
// Gateway's own listeners of the port, and the wildcards of older ListenerSets. ListenerSets in the Gateway's
// namespace are not restricted.
func (c *compiler) protectOwners(of *gateway, routes []*route) {
	claims, wildcards := map[int32]*ownership.Claims[*route]{}, map[portHost]*listener{}
	for _, found := range of.listeners {
		if found.ownerKind != model.KindListenerSet || found.owner.GetNamespace() == of.object.Namespace || found.layer4() || found.accepted != nil {
			continue
		}
		port := found.spec.Port
		if claims[port] == nil {
			claims[port] = c.claimsAt(of, routes, port)
		}
		older, _, known := claims[port].Oldest([]ownership.Host{found.host})
		clashes := known && isOwnedBefore(older.object, found.owner)
		for wider := found.host.Wider(); found.host != "" && wider != ""; wider = wider.Wider() {
			other := wildcards[portHost{port, wider}]
			clashes = clashes || other != nil && other.owner.GetNamespace() != found.owner.GetNamespace()
		}
		if clashes {
			found.conflict = builder.Refuse(model.ReasonConflict, gatewayv1.ListenerReasonHostnameConflict, "hostname: "+builder.HostOwned)
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
	host ownership.Host
}

// claimsAt returns the host names of routes at the Gateway's own listeners of a port, except routes for all
// hosts.
func (c *compiler) claimsAt(of *gateway, routes []*route, port int32) *ownership.Claims[*route] {
	claims := ownership.NewClaims[*route]()
	for age, each := range routes {
		for _, parent := range each.parents {
			listeners, ours := c.parentListeners(each, parent)
			if !ours || len(listeners) == 0 || listeners[0].gateway != of || listeners[0].ownerKind != model.KindGateway {
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

func withoutCatchAll(hosts []ownership.Host) []ownership.Host {
	found := hosts[:0:0]
	for _, host := range hosts {
		if host != "" {
			found = append(found, host)
		}
	}
	return found
}
