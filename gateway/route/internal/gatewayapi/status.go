// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route/model"
)

func (l *listener) conditions() []metav1.Condition {
	generation := l.owner.GetGeneration()
	accepted := condition(gatewayv1.ListenerConditionAccepted, true, gatewayv1.ListenerReasonAccepted, "", generation)
	programmed := condition(gatewayv1.ListenerConditionProgrammed, true, gatewayv1.ListenerReasonProgrammed, "", generation)
	resolved := condition(gatewayv1.ListenerConditionResolvedRefs, true, gatewayv1.ListenerReasonResolvedRefs, l.flaw, generation)
	conflicted := condition(gatewayv1.ListenerConditionConflicted, false, gatewayv1.ListenerReasonNoConflicts, "", generation)
	if l.resolved != nil {
		resolved = condition(gatewayv1.ListenerConditionResolvedRefs, false, l.resolved.Condition, l.resolved.Message, generation)
	}
	refused := l.accepted
	if l.conflict != nil {
		refused = l.conflict
		conflicted = condition(gatewayv1.ListenerConditionConflicted, true, refused.Condition, refused.Message, generation)
	}
	switch {
	case refused != nil:
		accepted = condition(gatewayv1.ListenerConditionAccepted, false, refused.Condition, refused.Message, generation)
		reason := string(gatewayv1.ListenerReasonInvalid)
		if l.conflict != nil {
			reason = refused.Condition
		}
		programmed = condition(gatewayv1.ListenerConditionProgrammed, false, reason, refused.Message, generation)
	case !l.gateway.accepted():
		programmed = condition(gatewayv1.ListenerConditionProgrammed, false, gatewayv1.ListenerReasonInvalid,
			"the Gateway is not accepted", generation)
	case !l.programmed():
		programmed = condition(gatewayv1.ListenerConditionProgrammed, false, gatewayv1.ListenerReasonInvalid,
			l.resolved.Message, generation)
	case l.retained != nil:
		accepted = condition(gatewayv1.ListenerConditionAccepted, false, l.retained.Condition, l.retained.Message, generation)
		programmed = condition(gatewayv1.ListenerConditionProgrammed, false, gatewayv1.ListenerReasonInvalid, l.retained.Message, generation)
	}
	found := []metav1.Condition{accepted, programmed, resolved, conflicted}
	if l.overlaps {
		found = append(found, condition(gatewayv1.ListenerConditionOverlappingTLSConfig, true,
			gatewayv1.ListenerReasonOverlappingHostnames,
			"another listener of the port has overlapping host names; requests on the other's connection get 421", generation))
	}
	return found
}

type summary struct {
	accepted, programmed bool
	refused, message     string
}

func summarize(listeners []*listener) summary {
	var found summary
	var refused, messages []string
	for _, each := range listeners {
		found.programmed = found.programmed || each.programmed()
		reason := each.conflict
		if reason == nil {
			reason = cmp.Or(each.accepted, each.retained)
		}
		if reason != nil {
			refused = append(refused, fmt.Sprintf("%s: %s", each.spec.Name, reason.Message))
		} else {
			found.accepted = true
			if !each.programmed() {
				reason = each.resolved
			}
		}
		if reason != nil {
			messages = append(messages, fmt.Sprintf("%s: %s", each.spec.Name, reason.Message))
		}
	}
	found.refused, found.message = strings.Join(refused, "; "), strings.Join(messages, "; ")
	return found
}

func (g *gateway) own() []*listener { return g.listeners[:len(g.object.Spec.Listeners)] }

func (g *gateway) status() gatewayv1.GatewayStatus {
	generation := g.object.Generation
	accepted := condition(gatewayv1.GatewayConditionAccepted, true, gatewayv1.GatewayReasonAccepted, "", generation)
	programmed := condition(gatewayv1.GatewayConditionProgrammed, true, gatewayv1.GatewayReasonProgrammed, "", generation)
	own, all := summarize(g.own()), summarize(g.listeners)
	switch {
	case !g.accepted():
		accepted = condition(gatewayv1.GatewayConditionAccepted, false, g.refused.Condition, g.refused.Message, generation)
		programmed = condition(gatewayv1.GatewayConditionProgrammed, false, gatewayv1.GatewayReasonInvalid, g.refused.Message, generation)
	case g.retained != nil:
		accepted = condition(gatewayv1.GatewayConditionAccepted, false, g.retained.Condition, g.retained.Message, generation)
		programmed = condition(gatewayv1.GatewayConditionProgrammed, false, gatewayv1.GatewayReasonInvalid, g.retained.Message, generation)
	case !all.accepted:
		accepted = condition(gatewayv1.GatewayConditionAccepted, false, gatewayv1.GatewayReasonListenersNotValid, own.refused, generation)
	case own.refused != "":
		accepted = condition(gatewayv1.GatewayConditionAccepted, true, gatewayv1.GatewayReasonListenersNotValid, own.refused, generation)
	}
	if g.accepted() && !all.programmed {
		programmed = condition(gatewayv1.GatewayConditionProgrammed, false, gatewayv1.GatewayReasonInvalid, own.message, generation)
	}
	found := gatewayv1.GatewayStatus{Conditions: []metav1.Condition{accepted, programmed, g.resolvedCondition()}}
	if insecureFallback(g.object) {
		found.Conditions = append(found.Conditions, condition(gatewayv1.GatewayConditionInsecureFrontendValidationMode, true,
			gatewayv1.GatewayReasonConfigurationChanged, "clients without a valid certificate are admitted", generation))
	}
	for _, listener := range g.own() {
		found.Listeners = append(found.Listeners, gatewayv1.ListenerStatus{
			Name:           listener.spec.Name,
			SupportedKinds: listener.kinds,
			AttachedRoutes: listener.attached,
			Conditions:     listener.conditions(),
		})
	}
	attached := int32(0)
	for _, set := range g.sets {
		if set.attached() {
			attached++
		}
	}
	found.AttachedListenerSets = &attached
	return found
}

func (g *gateway) resolvedCondition() metav1.Condition {
	if g.resolved != nil {
		return condition(gatewayv1.GatewayConditionResolvedRefs, false, g.resolved.Condition,
			"spec.tls.backend.clientCertificateRef: "+g.resolved.Message, g.object.Generation)
	}
	if policy := g.proxy.Excluded; policy != nil {
		return condition(gatewayv1.GatewayConditionResolvedRefs, false, model.ReasonPolicyStatusFull,
			fmt.Sprintf("the status of BackendTLSPolicy %s/%s has no room for one more Gateway: its Services are refused",
				policy.Object.Namespace, policy.Object.Name), g.object.Generation)
	}
	for _, listener := range g.own() {
		if listener.resolved != nil {
			return condition(gatewayv1.GatewayConditionResolvedRefs, false, gatewayv1.GatewayReasonListenersNotResolved,
				fmt.Sprintf("%s: %s", listener.spec.Name, listener.resolved.Message), g.object.Generation)
		}
	}
	return condition(gatewayv1.GatewayConditionResolvedRefs, true, gatewayv1.GatewayReasonResolvedRefs, "", g.object.Generation)
}

// maxMessage is the maximum length of a condition's message (metav1.Condition).
const maxMessage = 32768

func condition[T, R ~string](of T, status bool, reason R, message string, generation int64) metav1.Condition {
	found := metav1.Condition{
		Type: string(of), Status: metav1.ConditionFalse, Reason: string(reason),
		Message: message, ObservedGeneration: generation,
	}
	if status {
		found.Status = metav1.ConditionTrue
	}
	if len(found.Message) > maxMessage {
		found.Message = found.Message[:maxMessage]
	}
	return found
}

func statusOf[T any](object metav1.Object, status T) model.Status[T] {
	return model.Status[T]{
		Namespace: object.GetNamespace(), Name: object.GetName(),
		Generation: object.GetGeneration(), Status: status,
	}
}

func sortStatuses[T any](statuses []model.Status[T]) {
	slices.SortFunc(statuses, func(a, b model.Status[T]) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
