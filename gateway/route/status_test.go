// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route/model"
)

func checkStatuses(t *testing.T, result *model.Result, wanted []string) {
	t.Helper()
	found := displayStatuses(result)
	for subject, tokens := range found {
		for _, token := range tokens {
			// Conditions of other types are never removed, so ownConditions must contain each type.
			of, rest, _ := strings.Cut(token, "=")
			if strings.Contains(rest, "/") && !model.OwnsCondition(of) {
				t.Errorf("%s: condition %s is not one of our own", subject, of)
			}
		}
	}
	for _, line := range wanted {
		subject, tokens := []string{}, []string{}
		for _, field := range strings.Fields(line) {
			if strings.Contains(field, "=") {
				tokens = append(tokens, field)
			} else {
				subject = append(subject, field)
			}
		}
		got, known := found[strings.Join(subject, " ")]
		if len(tokens) == 0 && known {
			t.Errorf("%s has an unexpected status: %v", strings.Join(subject, " "), got)
		}
		for _, token := range tokens {
			if !slices.Contains(got, token) {
				t.Errorf("%s\nis   %v\nwant %s", strings.Join(subject, " "), got, token)
			}
		}
	}
}

func displayStatuses(result *model.Result) map[string][]string {
	found := map[string][]string{}
	statuses := &result.Statuses
	for _, each := range statuses.GatewayClasses {
		found["GatewayClass "+each.Name] = displayConditions(each.Status.Conditions)
	}
	for _, each := range statuses.Gateways {
		name := fmt.Sprintf("Gateway %s/%s", each.Namespace, each.Name)
		found[name] = append(displayConditions(each.Status.Conditions), fmt.Sprintf("sets=%d", *each.Status.AttachedListenerSets))
		for _, listener := range each.Status.Listeners {
			found[name+" "+string(listener.Name)] = displayListener(listener)
		}
	}
	for _, each := range statuses.ListenerSets {
		name := fmt.Sprintf("ListenerSet %s/%s", each.Namespace, each.Name)
		found[name] = displayConditions(each.Status.Conditions)
		for _, listener := range each.Status.Listeners {
			found[name+" "+string(listener.Name)] = displayListener(gatewayv1.ListenerStatus(listener))
		}
	}
	for kind, list := range map[string][]model.Status[gatewayv1.RouteStatus]{
		"HTTPRoute": statuses.HTTPRoutes, "GRPCRoute": statuses.GRPCRoutes, "TLSRoute": statuses.TLSRoutes,
		"TCPRoute": statuses.TCPRoutes, "UDPRoute": statuses.UDPRoutes,
	} {
		for _, each := range list {
			for _, parent := range each.Status.Parents {
				name := string(parent.ParentRef.Name)
				if parent.ParentRef.SectionName != nil {
					name += "#" + string(*parent.ParentRef.SectionName)
				}
				found[fmt.Sprintf("%s %s/%s %s", kind, each.Namespace, each.Name, name)] = displayConditions(parent.Conditions)
			}
		}
	}
	for _, each := range statuses.BackendTLSPolicies {
		for _, ancestor := range each.Status.Ancestors {
			found[fmt.Sprintf("BackendTLSPolicy %s/%s %s", each.Namespace, each.Name, ancestor.AncestorRef.Name)] =
				displayConditions(ancestor.Conditions)
		}
	}
	return found
}

func displayListener(listener gatewayv1.ListenerStatus) []string {
	kinds := []string{}
	for _, kind := range listener.SupportedKinds {
		kinds = append(kinds, string(kind.Kind))
	}
	return append(displayConditions(listener.Conditions),
		"kinds="+strings.Join(kinds, ","), fmt.Sprintf("attached=%d", listener.AttachedRoutes))
}

func displayConditions(conditions []metav1.Condition) []string {
	found := []string{}
	for _, condition := range conditions {
		found = append(found, fmt.Sprintf("%s=%s/%s", condition.Type, condition.Status, condition.Reason))
	}
	return found
}

func frontends(result *model.Result) []string {
	found := []string{}
	for _, frontend := range result.Frontends {
		line := fmt.Sprintf("%s %s %d/%s", frontend.Gateway.Name, frontend.Listener, frontend.Port, frontend.Protocol)
		for _, service := range frontend.Services {
			line += fmt.Sprintf(" %s/%s:%d*%d", service.Namespace, service.Name, service.Port, service.Weight)
			if service.Invalid {
				line += "!"
			}
		}
		found = append(found, line)
	}
	return found
}
