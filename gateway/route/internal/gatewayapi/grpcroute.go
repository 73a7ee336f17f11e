// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/pathmatch"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func (c *compiler) readGRPCRoute(of *route, object *gatewayv1.GRPCRoute) {
	var dropped []*builder.Refusal
	for i := range object.Spec.Rules {
		of.ruleIndex = i
		if refused := c.readGRPCRule(of, &object.Spec.Rules[i], i); refused != nil {
			refused.Message = fmt.Sprintf("spec.rules[%d].%s", i, refused.Message)
			dropped = append(dropped, refused)
		}
	}
	of.setDropped(dropped, len(object.Spec.Rules))
	slices.SortStableFunc(of.rules, compareRank)
}

func (c *compiler) readGRPCRule(of *route, rule *gatewayv1.GRPCRouteRule, index int) *builder.Refusal {
	matches, refused := readMatches(rule.Matches, grpcMatch)
	refused = cmp.Or(refused, of.addExpressions(matches))
	filters := grpcRuleFilters(rule)
	if refused != nil && !protectsRule(filters) {
		return refused
	}
	name := fmt.Sprintf("grpcroute/%s/%s/%d", of.object.GetNamespace(), of.object.GetName(), index)
	made, wrong := c.grpcAction(of, rule, name)
	of.add(closedFor(made, name, refused, wrong), matches, protectsRule(filters))
	return cmp.Or(refused, wrong)
}

func (c *compiler) grpcAction(of *route, rule *gatewayv1.GRPCRouteRule, name string) (*resource.Rule, *builder.Refusal) {
	made := &resource.Rule{Route: name}
	var refused *builder.Refusal
	if made.Filters, refused = c.filters(of, grpcFilters(rule.Filters)); refused != nil {
		return nil, refused
	}
	if made.SessionPersistence, refused = of.persistence(rule.SessionPersistence, name); refused != nil {
		return nil, refused
	}
	for i := range rule.BackendRefs {
		reference := &rule.BackendRefs[i]
		backend, refused := c.weightedBackend(of, i, reference.BackendRef, grpcFilters(reference.Filters), resource.Backend_H2C)
		if refused != nil {
			refused.Message = fmt.Sprintf("backendRefs[%d].%s", i, refused.Message)
			return nil, refused
		}
		made.Backends = append(made.Backends, backend)
	}
	return made, nil
}

// grpcMatch compiles a match. A longer service name takes precedence, then a longer method name, then more
// headers (Gateway API: GRPCRouteRule.matches).
func grpcMatch(of *gatewayv1.GRPCRouteMatch) (*orderedRule, *builder.Refusal) {
	match := &resource.Match{}
	var refused *builder.Refusal
	service, method := "", ""
	if of.Method != nil {
		service, method = ptr.Deref(of.Method.Service, ""), ptr.Deref(of.Method.Method, "")
		// For an invalid method, the path is nil and matches all methods.
		match.Path, refused = grpcPath(service, method, ptr.Deref(of.Method.Type, ""))
	}
	left := 0
	for i, header := range of.Headers {
		regular := ptr.Deref(header.Type, "") == gatewayv1.GRPCHeaderMatchRegularExpression
		var wrong *builder.Refusal
		match.Headers, wrong = addValue(match.Headers, strings.ToLower(string(header.Name)), header.Value, regular)
		left += number(wrong != nil)
		if wrong != nil && refused == nil {
			refused = wrong
			refused.Message = fmt.Sprintf("headers[%d]: %s", i, refused.Message)
		}
	}
	return &orderedRule{
		rule: &resource.Rule{Match: match},
		rank: [6]int{len(service), len(method), left + len(match.Headers)},
	}, refused
}

// grpcPath returns a match for path /service/method. An empty service or method matches any.
func grpcPath(service, method string, kind gatewayv1.GRPCMethodMatchType) (*resource.PathMatch, *builder.Refusal) {
	if kind != gatewayv1.GRPCMethodMatchRegularExpression && kind != gatewayv1.GRPCMethodMatchExact && kind != "" {
		return nil, builder.Refuse(model.ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue, "method.type: unknown type %s", kind)
	}
	if kind != gatewayv1.GRPCMethodMatchRegularExpression {
		if strings.Contains(service, "/") || strings.Contains(method, "/") {
			return nil, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue,
				"method: service %q and method %q must not contain /", service, method)
		}
		switch {
		case service != "" && method != "":
			return &resource.PathMatch{Kind: resource.PathMatch_EXACT, Value: "/" + service + "/" + method}, nil
		case service != "":
			return &resource.PathMatch{Value: "/" + service}, nil
		case method == "":
			return nil, nil
		}
		method = regexp.QuoteMeta(method)
	}
	part := func(text string) string {
		if text == "" {
			return "[^/]+"
		}
		return "(?:" + text + ")"
	}
	for _, text := range []string{service, method} {
		if err := pathmatch.ValidateExpression(text); err != nil {
			return nil, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "method: %v", err)
		}
	}
	both := "/" + part(service) + "/" + part(method)
	if err := pathmatch.ValidateExpression(both); err != nil {
		return nil, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "method: service and method together: %v", err)
	}
	return &resource.PathMatch{Kind: resource.PathMatch_REGULAR_EXPRESSION, Value: both}, nil
}
