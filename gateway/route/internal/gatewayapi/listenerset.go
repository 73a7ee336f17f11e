// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

type listenerSet struct {
	object    *gatewayv1.ListenerSet
	gateway   *gateway
	listeners []*listener
	// refused is the reason why no listener of the set is attached, or nil.
	refused *builder.Refusal
}

func (c *compiler) setsByGateway(objects []*gatewayv1.ListenerSet) map[types.NamespacedName][]*gatewayv1.ListenerSet {
	found := map[types.NamespacedName][]*gatewayv1.ListenerSet{}
	for _, object := range builder.OldestFirst(objects) {
		parent := object.Spec.ParentRef
		if parent.Group != nil && *parent.Group != gatewayv1.GroupName || parent.Kind != nil && *parent.Kind != model.KindGateway {
			continue
		}
		at := types.NamespacedName{Namespace: object.Namespace, Name: string(parent.Name)}
		if parent.Namespace != nil {
			at.Namespace = string(*parent.Namespace)
		}
		found[at] = append(found[at], object)
	}
	return found
}

// attachSets attaches the ListenerSets that the Gateway allows. By default it allows none.
func (c *compiler) attachSets(of *gateway, objects []*gatewayv1.ListenerSet) {
	allowed := allowedNamespaces{from: gatewayv1.NamespacesFromNone}
	if listeners := of.object.Spec.AllowedListeners; listeners != nil && listeners.Namespaces != nil {
		if listeners.Namespaces.From != nil {
			allowed.from = *listeners.Namespaces.From
		}
		allowed.selector = listeners.Namespaces.Selector
	}
	permits := c.namespaceSelector(of.object.Namespace, allowed, func(*builder.Refusal) {})
	for _, object := range objects {
		set := &listenerSet{object: object, gateway: of}
		of.sets = append(of.sets, set)
		c.sets[model.KeyOf(object)] = set
		switch {
		case !permits(object.Namespace):
			set.refused = builder.Refuse(model.ReasonInvalid, gatewayv1.ListenerSetReasonNotAllowed,
				"spec.parentRef: Gateway %s/%s does not allow ListenerSets of namespace %s",
				of.object.Namespace, of.object.Name, object.Namespace)
			continue
		case !of.accepted():
			set.refused = builder.Refuse(model.ReasonInvalid, gatewayv1.ListenerSetReasonParentNotAccepted,
				"spec.parentRef: Gateway %s/%s is not accepted", of.object.Namespace, of.object.Name)
			continue
		}
		for _, entry := range object.Spec.Listeners {
			found := c.newListener(of, object, model.KindListenerSet, gatewayv1.Listener(entry))
			c.admitListener(of, found)
			set.listeners = append(set.listeners, found)
			of.listeners = append(of.listeners, found)
		}
	}
	c.shareListeners(of)
}

func (s *listenerSet) attached() bool {
	return s.refused == nil && summarize(s.listeners).programmed
}

func (s *listenerSet) status() gatewayv1.ListenerSetStatus {
	generation := s.object.Generation
	accepted := condition(gatewayv1.ListenerSetConditionAccepted, true, gatewayv1.ListenerSetReasonAccepted, "", generation)
	programmed := condition(gatewayv1.ListenerSetConditionProgrammed, true, gatewayv1.ListenerSetReasonProgrammed, "", generation)
	all := summarize(s.listeners)
	refused := s.refused
	if refused == nil && !all.programmed {
		refused = builder.Refuse(model.ReasonInvalid, gatewayv1.ListenerSetReasonListenersNotValid, "%s", all.message)
	}
	switch {
	case refused != nil:
		accepted = condition(gatewayv1.ListenerSetConditionAccepted, false, refused.Condition, refused.Message, generation)
		programmed = condition(gatewayv1.ListenerSetConditionProgrammed, false, refused.Condition, refused.Message, generation)
	case all.message != "":
		accepted = condition(gatewayv1.ListenerSetConditionAccepted, true, gatewayv1.ListenerSetReasonListenersNotValid, all.message, generation)
	}
	found := gatewayv1.ListenerSetStatus{Conditions: []metav1.Condition{accepted, programmed}}
	for _, listener := range s.listeners {
		found.Listeners = append(found.Listeners, gatewayv1.ListenerEntryStatus{
			Name:           listener.spec.Name,
			SupportedKinds: listener.kinds,
			AttachedRoutes: listener.attached,
			Conditions:     listener.conditions(),
		})
	}
	return found
}
