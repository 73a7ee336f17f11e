// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func (c *compiler) policyStatuses() {
	for _, found := range c.policies.all {
		status := gatewayv1.PolicyStatus{Ancestors: []gatewayv1.PolicyAncestorStatus{}}
		for _, at := range slices.SortedFunc(maps.Keys(found.gateways), compareKeys) {
			if found.excludes(at) {
				continue
			}
			status.Ancestors = append(status.Ancestors, gatewayv1.PolicyAncestorStatus{
				AncestorRef:    gatewayReference(at),
				ControllerName: c.settings.GatewayController,
				Conditions:     policyConditions(found),
			})
		}
		c.result.Statuses.BackendTLSPolicies = append(c.result.Statuses.BackendTLSPolicies, statusOf(found.object, status))
	}
}

func policyConditions(p *policy) []metav1.Condition {
	generation, notes := p.object.Generation, slices.Clone(p.notes)
	if len(p.excluded) > 0 {
		notes = append(notes, fmt.Sprintf("status.ancestors has room for %d entries; %d more Gateways refuse the Services of the policy, the first is %s/%s",
			maxAncestors, len(p.excluded), p.excluded[0].Namespace, p.excluded[0].Name))
	}
	message := strings.Join(notes, "; ")
	accepted := condition(gatewayv1.PolicyConditionAccepted, true, gatewayv1.PolicyReasonAccepted, message, generation)
	if p.accepted != nil {
		accepted = condition(gatewayv1.PolicyConditionAccepted, false, p.accepted.condition,
			strings.Join(append([]string{p.accepted.message}, notes...), "; "), generation)
	}
	resolved := condition(gatewayv1.BackendTLSPolicyConditionResolvedRefs, true,
		gatewayv1.BackendTLSPolicyReasonResolvedRefs, "", generation)
	if p.resolved != nil {
		resolved = condition(gatewayv1.BackendTLSPolicyConditionResolvedRefs, false,
			p.resolved.condition, p.resolved.message, generation)
	}
	return []metav1.Condition{accepted, resolved}
}

func gatewayReference(at types.NamespacedName) gatewayv1.ParentReference {
	group, kind, namespace := gatewayv1.Group(gatewayv1.GroupName), gatewayv1.Kind(kindGateway), gatewayv1.Namespace(at.Namespace)
	return gatewayv1.ParentReference{Group: &group, Kind: &kind, Namespace: &namespace, Name: gatewayv1.ObjectName(at.Name)}
}

func (c *compiler) usePolicies() {
	if len(c.policies.all) == 0 {
		return
	}
	for at, found := range c.gatewayByKey {
		for service := range found.services() {
			for _, policy := range c.policies.targeting[service] {
				policy.gateways[at] = true
			}
		}
	}
	c.limitAncestors()
}

// maxAncestors is the maximum of entries in PolicyStatus.ancestors.
const maxAncestors = 16

// limitAncestors computes the Gateways for which the status of a policy has no room. Gateways with an
// entry keep it; others follow by name.
func (c *compiler) limitAncestors() {
	for _, found := range c.policies.all {
		others, previous := 0, map[types.NamespacedName]bool{}
		for _, ancestor := range found.object.Status.Ancestors {
			if ancestor.ControllerName != c.settings.GatewayController {
				others++
				continue
			}
			at := types.NamespacedName{Namespace: found.object.Namespace, Name: string(ancestor.AncestorRef.Name)}
			if ancestor.AncestorRef.Namespace != nil {
				at.Namespace = string(*ancestor.AncestorRef.Namespace)
			}
			previous[at] = true
		}
		gateways := slices.SortedFunc(maps.Keys(found.gateways), func(a, b types.NamespacedName) int {
			if previous[a] != previous[b] {
				return map[bool]int{true: -1, false: 1}[previous[a]]
			}
			return compareKeys(a, b)
		})
		found.excluded = gateways[min(len(gateways), max(maxAncestors-others, 0)):]
		slices.SortFunc(found.excluded, compareKeys)
	}
}
