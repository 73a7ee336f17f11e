// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func (c *compiler) policyStatuses() {
	for _, found := range c.Policies.All {
		status := gatewayv1.PolicyStatus{Ancestors: []gatewayv1.PolicyAncestorStatus{}}
		for _, at := range slices.SortedFunc(maps.Keys(found.Gateways), model.CompareKeys) {
			if found.Excludes(at) {
				continue
			}
			status.Ancestors = append(status.Ancestors, gatewayv1.PolicyAncestorStatus{
				AncestorRef:    gatewayReference(at),
				ControllerName: c.Settings.GatewayController,
				Conditions:     policyConditions(found),
			})
		}
		c.Result.Statuses.BackendTLSPolicies = append(c.Result.Statuses.BackendTLSPolicies, statusOf(found.Object, status))
	}
}

func policyConditions(p *builder.Policy) []metav1.Condition {
	generation, notes := p.Object.Generation, slices.Clone(p.Notes)
	if len(p.Excluded) > 0 {
		notes = append(notes, fmt.Sprintf("status.ancestors has room for %d entries; %d more Gateways refuse the Services of the policy, the first is %s/%s",
			maxAncestors, len(p.Excluded), p.Excluded[0].Namespace, p.Excluded[0].Name))
	}
	message := strings.Join(notes, "; ")
	accepted := condition(gatewayv1.PolicyConditionAccepted, true, gatewayv1.PolicyReasonAccepted, message, generation)
	if p.Accepted != nil {
		accepted = condition(gatewayv1.PolicyConditionAccepted, false, p.Accepted.Condition,
			strings.Join(append([]string{p.Accepted.Message}, notes...), "; "), generation)
	}
	resolved := condition(gatewayv1.BackendTLSPolicyConditionResolvedRefs, true,
		gatewayv1.BackendTLSPolicyReasonResolvedRefs, "", generation)
	if p.Resolved != nil {
		resolved = condition(gatewayv1.BackendTLSPolicyConditionResolvedRefs, false,
			p.Resolved.Condition, p.Resolved.Message, generation)
	}
	return []metav1.Condition{accepted, resolved}
}

func gatewayReference(at types.NamespacedName) gatewayv1.ParentReference {
	group, kind, namespace := gatewayv1.Group(gatewayv1.GroupName), gatewayv1.Kind(model.KindGateway), gatewayv1.Namespace(at.Namespace)
	return gatewayv1.ParentReference{Group: &group, Kind: &kind, Namespace: &namespace, Name: gatewayv1.ObjectName(at.Name)}
}

func (c *compiler) usePolicies() {
	if len(c.Policies.All) == 0 {
		return
	}
	for at, found := range c.gatewayByKey {
		for service := range found.services() {
			for _, policy := range c.Policies.Targeting[service] {
				policy.Gateways[at] = true
			}
		}
	}
	c.limitAncestors()
}

// maxAncestors is the maximum number of entries in PolicyStatus.ancestors.
const maxAncestors = 16

// limitAncestors determines the Gateways that exceed the maximum number of ancestors in a policy's status.
// Gateways that have an entry keep it; others follow by name.
func (c *compiler) limitAncestors() {
	for _, found := range c.Policies.All {
		others, previous := 0, map[types.NamespacedName]bool{}
		for _, ancestor := range found.Object.Status.Ancestors {
			if ancestor.ControllerName != c.Settings.GatewayController {
				others++
				continue
			}
			at := types.NamespacedName{Namespace: found.Object.Namespace, Name: string(ancestor.AncestorRef.Name)}
			if ancestor.AncestorRef.Namespace != nil {
				at.Namespace = string(*ancestor.AncestorRef.Namespace)
			}
			previous[at] = true
		}
		gateways := slices.SortedFunc(maps.Keys(found.Gateways), func(a, b types.NamespacedName) int {
			if previous[a] != previous[b] {
				return map[bool]int{true: -1, false: 1}[previous[a]]
			}
			return model.CompareKeys(a, b)
		})
		found.Excluded = gateways[min(len(gateways), max(maxAncestors-others, 0)):]
		slices.SortFunc(found.Excluded, model.CompareKeys)
	}
}
