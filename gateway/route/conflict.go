// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

type portUse struct {
	// first is the first listener of the port; all others must be able to share the port with it.
	first *listener
	hosts map[hostname]*listener
}

type transport struct {
	port      int32
	datagrams bool
}

func (l *listener) transport() transport {
	return transport{l.spec.Port, l.spec.Protocol == gatewayv1.UDPProtocolType}
}

// maxPorts bounds the ports of a Gateway and its ListenerSets. Each is a port of the Service and a socket
// of every proxy.
const maxPorts = 256

// conflicts refuses listeners that conflict, and listeners beyond maxPorts. Conflicting listeners of the
// Gateway itself are all refused. A listener of a ListenerSet is refused if it conflicts with a listener
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
			found.accepted = refuse(ReasonUnsupported, gatewayv1.ListenerReasonPortUnavailable,
				"port: the Gateway and its older ListenerSets use %d ports, the maximum", maxPorts)
			continue
		}
		if use == nil {
			use = &portUse{first: found, hosts: map[hostname]*listener{}}
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
		if found.ownerKind == kindGateway && found.accepted == nil {
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

func (u *portUse) conflict(found *listener) *refusal {
	if refused := conflict(found, u.first); refused != nil {
		return refused
	}
	if other := u.hosts[found.host]; other != nil {
		return conflict(found, other)
	}
	return nil
}

func conflict(a, b *listener) *refusal {
	if a.transport() != b.transport() {
		return nil
	}
	if family(a) != family(b) || a.layer4() {
		return refuse(ReasonConflict, gatewayv1.ListenerReasonProtocolConflict,
			"port: %s has the same port and protocol %s", a.nameOf(b), b.spec.Protocol)
	}
	if a.host != b.host {
		return nil
	}
	reason := gatewayv1.ListenerReasonHostnameConflict
	if a.spec.Protocol != b.spec.Protocol {
		reason = gatewayv1.ListenerReasonProtocolConflict
	}
	return refuse(ReasonConflict, reason, "hostname: %s has the same host name and port", a.nameOf(b))
}

// nameOf hides names of other namespaces in messages.
func (l *listener) nameOf(other *listener) string {
	if other.ownerKind == kindListenerSet && other.owner.GetNamespace() != l.owner.GetNamespace() {
		return "a listener of an older object of another namespace"
	}
	return fmt.Sprintf("listener %s of %s %s/%s", other.spec.Name, other.ownerKind, other.owner.GetNamespace(), other.owner.GetName())
}

// family maps HTTPS and TLS, which share ports by server name, to one protocol.
func family(l *listener) gatewayv1.ProtocolType {
	if l.spec.Protocol == gatewayv1.HTTPSProtocolType {
		return gatewayv1.TLSProtocolType
	}
	return l.spec.Protocol
}

// overlaps marks the HTTPS listeners of a port with overlapping host names: clients may reuse a
// connection of one for the other (Gateway API: OverlappingTLSConfig).
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
