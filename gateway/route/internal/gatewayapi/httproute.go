// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// readHTTPRoute reads the rules of an HTTPRoute and reports invalid ones. If all rules are invalid, the route
// is not accepted.
func (c *compiler) readHTTPRoute(of *route, object *gatewayv1.HTTPRoute) {
	rules := object.Spec.Rules
	if len(rules) == 0 {
		// This is the default that the API server adds.
		rules = []gatewayv1.HTTPRouteRule{{}}
	}
	var dropped []*builder.Refusal
	for i := range rules {
		of.ruleIndex = i
		if refused := c.readHTTPRule(of, &rules[i], i); refused != nil {
			refused.Message = fmt.Sprintf("spec.rules[%d].%s", i, refused.Message)
			dropped = append(dropped, refused)
		}
	}
	of.setDropped(dropped, len(rules))
	slices.SortStableFunc(of.rules, compareRank)
}

func (r *route) setDropped(dropped []*builder.Refusal, of int) {
	switch {
	case len(dropped) == 0:
	case len(dropped) == of:
		r.accepted = dropped[0]
	default:
		// Gateway API specifies that the condition's message starts with "Dropped Rule".
		r.partial = builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "Dropped Rule: %s", dropped[0].Message)
		r.partial.Condition = dropped[0].Condition
	}
}

// readHTTPRule adds a rule once for each match. A rule with an invalid action answers 500. A protecting rule
// with an invalid match answers 500 to all requests that the match could include.
func (c *compiler) readHTTPRule(of *route, rule *gatewayv1.HTTPRouteRule, index int) *builder.Refusal {
	matches, refused := readMatches(rule.Matches, httpMatch)
	refused = cmp.Or(refused, of.addExpressions(matches))
	filters := httpRuleFilters(rule)
	if refused != nil && !protectsRule(filters) {
		return refused
	}
	name := "httproute/" + of.object.GetNamespace() + "/" + of.object.GetName() + "/" + strconv.Itoa(index)
	made, wrong := c.httpAction(of, rule, name)
	if wrong == nil && refused == nil {
		wrong = checkPrefixMatches(made.Filters, matches)
	}
	of.add(closedFor(made, name, refused, wrong), matches, protectsRule(filters))
	return cmp.Or(refused, wrong)
}

func (c *compiler) httpAction(of *route, rule *gatewayv1.HTTPRouteRule, name string) (*resource.Rule, *builder.Refusal) {
	made := &resource.Rule{Route: name}
	of.isAuthUnresolved = false
	var refused *builder.Refusal
	if made.Filters, refused = c.filters(of, httpFilters(rule.Filters)); refused != nil {
		return nil, refused
	}
	if refused = limitExternalAuth(made.Filters, 1); refused != nil {
		return nil, refused
	}
	if made.Timeouts, refused = timeouts(rule.Timeouts); refused != nil {
		return nil, refused
	}
	if made.Retry, refused = of.retry(rule.Retry); refused != nil {
		return nil, refused
	}
	if made.SessionPersistence, refused = of.persistence(rule.SessionPersistence, name); refused != nil {
		return nil, refused
	}
	for i := range rule.BackendRefs {
		reference := &rule.BackendRefs[i]
		backend, refused := c.weightedBackend(of, i, reference.BackendRef, httpFilters(reference.Filters), resource.Backend_HTTP1)
		if refused != nil {
			refused.Message = fmt.Sprintf("backendRefs[%d].%s", i, refused.Message)
			return nil, refused
		}
		made.Backends = append(made.Backends, backend)
	}
	if of.isAuthUnresolved {
		made.Backends = nil
	}
	return made, nil
}

func (r *route) add(rule *resource.Rule, matches []*orderedRule, protects bool) {
	for _, match := range matches {
		match.rule, match.protects = builder.WithMatch(rule, match.rule.Match), protects
		r.rules = append(r.rules, match)
	}
}

// weightedBackend compiles a backend of a rule. It refuses invalid filters. The share of a backend that does
// not resolve is answered with 500.
func (c *compiler) weightedBackend(
	of *route, i int, reference gatewayv1.BackendRef, filters []filter, protocol resource.Backend_Protocol,
) (*resource.WeightedBackend, *builder.Refusal) {
	made := &resource.WeightedBackend{Weight: weight(reference.Weight)}
	var refused *builder.Refusal
	if made.Filters, refused = c.filters(of, filters); refused != nil {
		return nil, refused
	}
	if refused = limitExternalAuth(made.Filters, 0); refused != nil {
		return nil, refused
	}
	made.Backend, refused = c.resolveBackend(of, reference.BackendObjectReference, builder.Upstream{Protocol: protocol})
	if refused != nil {
		of.refuseResolved(refused.At("spec.rules[%d].backendRefs[%d]", of.ruleIndex, i))
	}
	return made, nil
}

func (c *compiler) resolveBackend(of *route, reference gatewayv1.BackendObjectReference, spec builder.Upstream) (string, *builder.Refusal) {
	at, port, refused := c.serviceOf(of.referrer(), reference, corev1.ProtocolTCP)
	if refused != nil {
		return "", refused
	}
	found, refused := c.Backend(at, port, spec)
	if refused != nil {
		return "", refused
	}
	if !slices.Contains(of.backends, found) {
		of.backends = append(of.backends, found)
	}
	return found.Name, nil
}

func weight(of *int32) uint32 {
	if of == nil {
		return 1
	}
	return uint32(max(*of, 0))
}

func timeouts(of *gatewayv1.HTTPRouteTimeouts) (*resource.Timeouts, *builder.Refusal) {
	if of == nil {
		return nil, nil
	}
	found := &resource.Timeouts{}
	var refused *builder.Refusal
	if found.Request, refused = milliseconds(of.Request, "timeouts.request"); refused != nil {
		return nil, refused
	}
	found.BackendRequest, refused = milliseconds(of.BackendRequest, "timeouts.backendRequest")
	return found, refused
}

// maxAttempts limits the cost of a request: retries to a backend that fails immediately are not limited by
// time.
const maxAttempts = 10

// retry compiles the retry settings of a rule. More than maxAttempts attempts are reduced to it.
func (r *route) retry(of *gatewayv1.HTTPRouteRetry) (*resource.Retry, *builder.Refusal) {
	if of == nil {
		return nil, nil
	}
	found := &resource.Retry{Attempts: 1}
	if of.Attempts != nil {
		found.Attempts = uint32(max(*of.Attempts, 0))
	}
	if found.Attempts > maxAttempts {
		r.note("retry.attempts: %d is lowered to the maximum of %d", found.Attempts, maxAttempts)
		found.Attempts = maxAttempts
	}
	for i, code := range of.Codes {
		if code < 400 || code > 599 {
			return nil, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue,
				"retry.codes[%d]: %d is not from 400 to 599", i, code)
		}
		found.Statuses = append(found.Statuses, uint32(code))
	}
	var refused *builder.Refusal
	found.Backoff, refused = milliseconds(of.Backoff, "retry.backoff")
	return found, refused
}

// isToken reports whether a text is a token (RFC 9110, section 5.6.2), such as the name of a header or a
// cookie.
func isToken(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

func (r *route) persistence(of *gatewayv1.SessionPersistence, route string) (*resource.SessionPersistence, *builder.Refusal) {
	if of == nil {
		return nil, nil
	}
	found := &resource.SessionPersistence{SessionName: ptr.Deref(of.SessionName, "")}
	if !isToken(found.SessionName) {
		sum := fnv.New64a()
		_, _ = sum.Write([]byte(route))
		found.SessionName = fmt.Sprintf("millrace-%x", sum.Sum64())
		if name := ptr.Deref(of.SessionName, ""); name != "" {
			r.note("sessionPersistence.sessionName: %q is not the name of a cookie or header, %s is used", name, found.SessionName)
		}
	}
	if ptr.Deref(of.Type, "") == gatewayv1.HeaderBasedSessionPersistence {
		found.Kind = resource.SessionPersistence_HEADER
	}
	var refused *builder.Refusal
	if found.AbsoluteTimeout, refused = milliseconds(of.AbsoluteTimeout, "sessionPersistence.absoluteTimeout"); refused != nil {
		return nil, refused
	}
	if of.CookieConfig != nil && ptr.Deref(of.CookieConfig.LifetimeType, "") == gatewayv1.PermanentCookieLifetimeType {
		found.Permanent = true
		if found.AbsoluteTimeout == 0 {
			return nil, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue,
				"sessionPersistence.absoluteTimeout: it is required for a permanent cookie")
		}
	}
	return found, nil
}
