// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/certificate"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

type listener struct {
	gateway *gateway
	// owner is the Gateway or ListenerSet of the listener. References are resolved from its namespace.
	owner     metav1.Object
	ownerKind string
	spec      gatewayv1.Listener
	name      string
	host      ownership.Host

	// accepted, resolved and conflict are the reasons of negative conditions, or nil.
	accepted, resolved, conflict *builder.Refusal
	// retained is the reason why the listener's previous version is served, or nil.
	retained      *builder.Refusal
	overlaps      bool
	flaw          string
	hasNoRoom     bool
	attachedKinds []string
	// claims contains the host names of attached routes by kind. Each kind is built on first use.
	claims      map[string]*ownership.Claims[*route]
	kinds       []gatewayv1.RouteGroupKind
	namespaces  func(namespace string) bool
	attachments []attachment
	attached    int32

	certificates []*certificate.Certificate
	validation   *resource.ClientValidation
	authorities  []*resource.Resource
}

type attachment struct {
	route *route
	hosts []ownership.Host
}

// listenerProtocols maps a protocol to the kinds of routes that can be attached.
var listenerProtocols = map[gatewayv1.ProtocolType][]string{
	gatewayv1.HTTPProtocolType:  {model.KindHTTPRoute, model.KindGRPCRoute},
	gatewayv1.HTTPSProtocolType: {model.KindHTTPRoute, model.KindGRPCRoute},
	gatewayv1.TLSProtocolType:   {model.KindTLSRoute},
	gatewayv1.TCPProtocolType:   {model.KindTCPRoute},
	gatewayv1.UDPProtocolType:   {model.KindUDPRoute},
}

func (c *compiler) newListener(of *gateway, owner metav1.Object, ownerKind string, spec gatewayv1.Listener) *listener {
	found := &listener{gateway: of, owner: owner, ownerKind: ownerKind, spec: spec}
	found.name = "listener/" + string(spec.Name)
	if ownerKind == model.KindListenerSet {
		found.name = "listener/" + owner.GetNamespace() + "/" + owner.GetName() + "/" + string(spec.Name)
	}
	found.readKinds()
	found.readHost()
	found.namespaces = c.namespaceSelector(owner.GetNamespace(), routeNamespaces(spec.AllowedRoutes), found.refuseAccepted)
	if found.accepted == nil {
		c.readTLS(found)
	}
	c.readRetainedListener(found)
	return found
}

func (l *listener) refuseAccepted(refused *builder.Refusal) {
	if l.accepted == nil {
		l.accepted = refused
	}
}

func (l *listener) refuseResolved(refused *builder.Refusal) {
	if l.resolved == nil {
		l.resolved = refused
	}
}

// layer4 reports whether the listener is served without a proxy.
func (l *listener) layer4() bool {
	return l.spec.Protocol == gatewayv1.TCPProtocolType || l.spec.Protocol == gatewayv1.UDPProtocolType
}

func (l *listener) terminatesTLS() bool {
	return l.spec.Protocol == gatewayv1.HTTPSProtocolType ||
		l.spec.Protocol == gatewayv1.TLSProtocolType && !l.passthrough()
}

func (l *listener) passthrough() bool {
	return l.spec.Protocol == gatewayv1.TLSProtocolType && l.spec.TLS != nil &&
		ptr.Deref(l.spec.TLS.Mode, "") == gatewayv1.TLSModePassthrough
}

func (l *listener) exposed() bool {
	return l.gateway.accepted() && l.accepted == nil && l.conflict == nil
}

func (l *listener) programmed() bool {
	return l.exposed() && (!l.terminatesTLS() || len(l.certificates) > 0)
}

func (l *listener) readKinds() {
	kinds, known := listenerProtocols[l.spec.Protocol]
	if !known {
		l.accepted = builder.Refuse(model.ReasonUnsupported, gatewayv1.ListenerReasonUnsupportedProtocol,
			"protocol: %s is not supported", l.spec.Protocol)
		l.kinds = []gatewayv1.RouteGroupKind{}
		return
	}
	l.kinds = []gatewayv1.RouteGroupKind{}
	if l.spec.AllowedRoutes == nil || len(l.spec.AllowedRoutes.Kinds) == 0 {
		for _, kind := range kinds {
			l.kinds = append(l.kinds, routeKind(kind))
		}
		return
	}
	for i, kind := range l.spec.AllowedRoutes.Kinds {
		group := gatewayv1.Group(gatewayv1.GroupName)
		if kind.Group != nil {
			group = *kind.Group
		}
		if group != gatewayv1.GroupName || !slices.Contains(kinds, string(kind.Kind)) {
			l.refuseResolved(builder.Refuse(model.ReasonUnsupported, gatewayv1.ListenerReasonInvalidRouteKinds,
				"allowedRoutes.kinds[%d]: %s/%s cannot attach to protocol %s", i, group, kind.Kind, l.spec.Protocol))
			continue
		}
		if !l.allows(string(kind.Kind)) {
			l.kinds = append(l.kinds, routeKind(string(kind.Kind)))
		}
	}
}

func (l *listener) allows(kind string) bool {
	return slices.ContainsFunc(l.kinds, func(k gatewayv1.RouteGroupKind) bool { return string(k.Kind) == kind })
}

func routeKind(kind string) gatewayv1.RouteGroupKind {
	group := gatewayv1.Group(gatewayv1.GroupName)
	return gatewayv1.RouteGroupKind{Group: &group, Kind: gatewayv1.Kind(kind)}
}

func (l *listener) readHost() {
	if l.layer4() || l.spec.Hostname == nil {
		return
	}
	host, err := ownership.ParseHost(string(*l.spec.Hostname))
	if err != nil {
		l.refuseAccepted(builder.Refuse(model.ReasonInvalid, gatewayv1.ListenerReasonUnsupportedValue, "hostname: %v", err))
		return
	}
	l.host = host
}

type allowedNamespaces struct {
	from     gatewayv1.FromNamespaces
	selector *metav1.LabelSelector
}

func routeNamespaces(allowed *gatewayv1.AllowedRoutes) allowedNamespaces {
	found := allowedNamespaces{from: gatewayv1.NamespacesFromSame}
	if allowed != nil && allowed.Namespaces != nil {
		if allowed.Namespaces.From != nil {
			found.from = *allowed.Namespaces.From
		}
		found.selector = allowed.Namespaces.Selector
	}
	return found
}

func (c *compiler) namespaceSelector(own string, allowed allowedNamespaces, refused func(*builder.Refusal)) func(string) bool {
	switch allowed.from {
	case gatewayv1.NamespacesFromAll:
		return func(string) bool { return true }
	case gatewayv1.NamespacesFromSame:
		return func(namespace string) bool { return namespace == own }
	case gatewayv1.NamespacesFromSelector:
		selector, err := metav1.LabelSelectorAsSelector(allowed.selector)
		if err != nil {
			refused(builder.Refuse(model.ReasonInvalid, gatewayv1.ListenerReasonUnsupportedValue, "allowedRoutes.namespaces.selector: %v", err))
			selector = labels.Nothing()
		}
		return func(namespace string) bool {
			set, known := c.Index.Namespaces[namespace]
			return known && selector.Matches(set)
		}
	}
	return func(string) bool { return false }
}
