// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

// attach attaches a route to a parent and returns the route's conditions for it, or nil if another controller
// manages the parent.
func (c *compiler) attach(of *route, parent gatewayv1.ParentReference) []metav1.Condition {
	listeners, ours := c.parentListeners(of, parent)
	if !ours {
		return nil
	}
	if refused := c.refuseUnread(of, listeners); refused != nil {
		c.addRouteFailure(of, refused)
		return []metav1.Condition{
			condition(gatewayv1.RouteConditionAccepted, false, refused.Condition, refused.Message, of.object.GetGeneration()),
		}
	}
	c.readRules(of)
	refused := c.attachAll(of, parent, listeners)
	if of.accepted != nil {
		refused = of.accepted
	}
	generation := of.object.GetGeneration()
	accepted := condition(gatewayv1.RouteConditionAccepted, true, gatewayv1.RouteReasonAccepted, strings.Join(of.notes, "; "), generation)
	if refused != nil {
		accepted = condition(gatewayv1.RouteConditionAccepted, false, refused.Condition, refused.Message, generation)
	}
	resolved := condition(gatewayv1.RouteConditionResolvedRefs, true, gatewayv1.RouteReasonResolvedRefs, "", generation)
	if of.resolved != nil {
		resolved = condition(gatewayv1.RouteConditionResolvedRefs, false, of.resolved.Condition, of.resolved.Message, generation)
	}
	conditions := []metav1.Condition{accepted, resolved}
	if of.partial != nil && refused == nil {
		conditions = append(conditions,
			condition(gatewayv1.RouteConditionPartiallyInvalid, true, of.partial.Condition, of.partial.Message, generation))
	}
	return conditions
}

// parentListeners returns the listeners of a parent, or false if this controller does not manage the parent.
func (c *compiler) parentListeners(of *route, parent gatewayv1.ParentReference) ([]*listener, bool) {
	if parent.Group != nil && *parent.Group != gatewayv1.GroupName {
		return nil, false
	}
	at := types.NamespacedName{Namespace: of.object.GetNamespace(), Name: string(parent.Name)}
	if parent.Namespace != nil {
		at.Namespace = string(*parent.Namespace)
	}
	switch kind := ptr.Deref(parent.Kind, ""); kind {
	case model.KindGateway, "":
		if found := c.gatewayByKey[at]; found != nil {
			return found.own(), true
		}
	case model.KindListenerSet:
		if found := c.sets[at]; found != nil {
			return found.listeners, true
		}
	}
	return nil, false
}

type candidate struct {
	listener *listener
	hosts    []ownership.Host
}

// attachAll attaches a route to the listeners that accept it, or returns the reason why no listener does. A
// refused route does not count in attachedRoutes, and its valid rules answer 500.
func (c *compiler) attachAll(of *route, parent gatewayv1.ParentReference, listeners []*listener) *builder.Refusal {
	refused := builder.Refuse(model.ReasonNotFound, gatewayv1.RouteReasonNoMatchingParent, "spec.parentRefs: the parent has no such listener")
	var accepting []candidate
	closest := 0
	for _, at := range listeners {
		if !at.isSelectedBy(parent) {
			continue
		}
		hosts, step, reason := at.accept(of)
		if reason == nil {
			accepting = append(accepting, candidate{at, hosts})
		} else if step > closest {
			closest, refused = step, reason
		}
	}
	if len(accepting) == 0 {
		return refused
	}
	if full := c.admitRoute(of, accepting); full != nil {
		c.addRouteFailure(of, full)
		c.closeProtected(of, accepting)
		return full
	}
	for _, at := range accepting {
		at.listener.attach(of, at.hosts)
	}
	return nil
}

func (l *listener) isSelectedBy(parent gatewayv1.ParentReference) bool {
	return (ptr.Deref(parent.SectionName, "") == "" || *parent.SectionName == l.spec.Name) &&
		(ptr.Deref(parent.Port, 0) == 0 || *parent.Port == l.spec.Port)
}

// accept returns the host names for which a listener accepts a route. If it does not, step is the number of
// the failed check.
func (l *listener) accept(of *route) (hosts []ownership.Host, step int, refused *builder.Refusal) {
	if !l.allows(of.kind) || !l.namespaces(of.object.GetNamespace()) {
		return nil, 1, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonNotAllowedByListeners,
			"spec.parentRefs: no listener allows routes of kind %s from namespace %s", of.kind, of.object.GetNamespace())
	}
	hosts = l.intersection(of.hosts)
	if len(hosts) == 0 {
		return nil, 2, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonNoMatchingListenerHostname,
			"spec.hostnames: no listener has a host name in common with the route")
	}
	if clash := l.hostConflict(of, hosts); clash != nil {
		return nil, 3, clash
	}
	return hosts, 0, nil
}

func (l *listener) attach(of *route, hosts []ownership.Host) {
	if last := len(l.attachments) - 1; last >= 0 && l.attachments[last].route == of {
		// Another parent reference of the route already selects the listener.
		return
	}
	l.attachments = append(l.attachments, attachment{of, hosts})
	l.claim(attachment{of, hosts})
	if of.accepted == nil {
		l.attached++
	}
}

func (l *listener) intersection(hosts []ownership.Host) []ownership.Host {
	if l.layer4() {
		return hosts
	}
	found := make([]ownership.Host, 0, len(hosts))
	for _, host := range hosts {
		if both, ok := ownership.Intersect(l.host, host); ok {
			found = append(found, both)
		}
	}
	return found
}

// conflictingKind maps a route kind to the kind that cannot have the same host names at a listener.
var conflictingKind = map[string]string{model.KindHTTPRoute: model.KindGRPCRoute, model.KindGRPCRoute: model.KindHTTPRoute}

// hostConflict refuses an HTTPRoute or GRPCRoute if an older route of the other kind has one of its host
// names (Gateway API: GRPCRoute, cross serving).
func (l *listener) hostConflict(of *route, hosts []ownership.Host) *builder.Refusal {
	other := conflictingKind[of.kind]
	if other == "" || !slices.Contains(l.attachedKinds, other) {
		return nil
	}
	older, host, clashes := l.claimsOf(other).Oldest(hosts)
	if !clashes {
		return nil
	}
	name := older.object.GetNamespace() + "/" + older.object.GetName()
	if older.object.GetNamespace() != of.object.GetNamespace() {
		name = "of another namespace"
	}
	return builder.Refuse(model.ReasonConflict, gatewayv1.RouteReasonNotAllowedByListeners,
		"spec.hostnames: %s %s is older and has %s, too", older.kind, name, host)
}

// claimsOf returns the claims of a kind's routes. They are built on first use, because most listeners have
// routes of one kind only.
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

// claim adds an attachment to the claims of its kind if they are built. A route that is not accepted claims
// nothing.
func (l *listener) claim(of attachment) {
	if !slices.Contains(l.attachedKinds, of.route.kind) {
		l.attachedKinds = append(l.attachedKinds, of.route.kind)
	}
	if known := l.claims[of.route.kind]; known != nil && of.route.accepted == nil {
		known.Add(of.route, of.route.age, of.hosts)
	}
}
