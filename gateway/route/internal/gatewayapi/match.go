// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/pathmatch"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Ranks of path matches of an HTTPRoute: exact paths, regular expressions, prefixes. Further criteria are the
// length of the path, a method, the number of headers, and the number of query parameters (Gateway API:
// HTTPRouteRule.matches).
const (
	rankPrefix = iota
	rankRegularExpression
	rankExact
)

// readMatches reads the matches of a rule. A rule without matches matches all requests. read must widen an
// invalid match to all requests that it could match.
func readMatches[M any](of []M, read func(*M) (*orderedRule, *builder.Refusal)) (found []*orderedRule, refused *builder.Refusal) {
	if len(of) == 0 {
		of = make([]M, 1)
	}
	found = make([]*orderedRule, 0, len(of))
	for i := range of {
		match, wrong := read(&of[i])
		if wrong != nil && refused == nil {
			refused = wrong
			refused.Message = fmt.Sprintf("matches[%d].%s", i, refused.Message)
		}
		found = append(found, match)
	}
	return found, refused
}

// httpMatch compiles a match. Invalid conditions are omitted, which widens the match.
func httpMatch(of *gatewayv1.HTTPRouteMatch) (*orderedRule, *builder.Refusal) {
	path, rank, refused := pathMatch(of.Path)
	match := &resource.Match{Path: path, Method: string(ptr.Deref(of.Method, ""))}
	wrong := func(found *builder.Refusal, field string, i int) {
		if found != nil && refused == nil {
			refused = found
			refused.Message = fmt.Sprintf("%s[%d]: %s", field, i, refused.Message)
		}
	}
	// The rank counts omitted conditions, too.
	headers, parameters := 0, 0
	var bad *builder.Refusal
	for i, header := range of.Headers {
		regular := ptr.Deref(header.Type, "") == gatewayv1.HeaderMatchRegularExpression
		match.Headers, bad = addValue(match.Headers, strings.ToLower(string(header.Name)), header.Value, regular)
		wrong(bad, "headers", i)
		headers += number(bad != nil)
	}
	for i, parameter := range of.QueryParams {
		regular := ptr.Deref(parameter.Type, "") == gatewayv1.QueryParamMatchRegularExpression
		match.QueryParameters, bad = addValue(match.QueryParameters, string(parameter.Name), parameter.Value, regular)
		wrong(bad, "queryParams", i)
		parameters += number(bad != nil)
	}
	return &orderedRule{rule: &resource.Rule{Match: match}, rank: [6]int{
		rank, lengthOf(path, of.Path), number(match.Method != ""), headers + len(match.Headers), parameters + len(match.QueryParameters),
	}}, refused
}

// lengthOf returns the length of a path for ranking. The length of an expression is that in the object.
func lengthOf(path *resource.PathMatch, of *gatewayv1.HTTPPathMatch) int {
	if of != nil && of.Value != nil && path.Kind == resource.PathMatch_REGULAR_EXPRESSION {
		return len(*of.Value)
	}
	return len(path.Value)
}

// pathMatch compiles a path match. Nil matches all paths, and an invalid path is widened.
func pathMatch(of *gatewayv1.HTTPPathMatch) (*resource.PathMatch, int, *builder.Refusal) {
	found, rank := &resource.PathMatch{Value: "/"}, rankPrefix
	if of == nil {
		return found, rank, nil
	}
	if of.Value != nil {
		found.Value = *of.Value
	}
	switch kind := ptr.Deref(of.Type, ""); kind {
	case gatewayv1.PathMatchPathPrefix, "":
	case gatewayv1.PathMatchExact:
		found.Kind, rank = resource.PathMatch_EXACT, rankExact
	case gatewayv1.PathMatchRegularExpression:
		found.Kind, rank = resource.PathMatch_REGULAR_EXPRESSION, rankRegularExpression
		if err := pathmatch.ValidateExpression(found.Value); err != nil {
			return pathmatch.Superset(found.Value), rank, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "path.value: %v", err)
		}
		return found, rank, nil
	default:
		return pathmatch.Superset(""), rankExact, builder.Refuse(model.ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue, "path.type: unknown type %s", kind)
	}
	canonical, err := pathmatch.Canonical(found.Value)
	if err != nil {
		return pathmatch.Superset(regexp.QuoteMeta(found.Value)), rank, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "path.value: %v", err)
	}
	found.Value = canonical
	if found.Kind == resource.PathMatch_PREFIX {
		found.Value = pathmatch.TrimPrefix(found.Value)
	}
	return found, rank, nil
}

// addValue adds a header or parameter match. Of several with the same name, the first is used (Gateway API).
func addValue(to []*resource.ValueMatch, name, text string, regular bool) ([]*resource.ValueMatch, *builder.Refusal) {
	for _, known := range to {
		if known.Name == name {
			return to, nil
		}
	}
	if regular {
		if err := pathmatch.ValidateExpression(text); err != nil {
			return to, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "%v", err)
		}
	}
	return append(to, &resource.ValueMatch{Name: name, Value: text, RegularExpression: regular}), nil
}

func milliseconds(of *gatewayv1.Duration, field string) (uint64, *builder.Refusal) {
	if of == nil {
		return 0, nil
	}
	duration, err := time.ParseDuration(string(*of))
	if err != nil || duration < 0 {
		return 0, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "%s: %q is not a duration", field, *of)
	}
	return uint64(duration.Milliseconds()), nil
}

// addExpressions counts the regular expressions of a rule. If they exceed the route's limit, it refuses the
// rule and widens its matches to literal prefixes.
func (r *route) addExpressions(matches []*orderedRule) *builder.Refusal {
	needed := 0
	count := func(text string) {
		found, _ := pathmatch.ExpressionSteps(text)
		needed += found
	}
	for _, match := range matches {
		if path := match.rule.Match.GetPath(); path.GetKind() == resource.PathMatch_REGULAR_EXPRESSION {
			count(path.GetValue())
		}
		for _, values := range [][]*resource.ValueMatch{match.rule.Match.Headers, match.rule.Match.QueryParameters} {
			for _, value := range values {
				if value.RegularExpression {
					count(value.Value)
				}
			}
		}
	}
	if r.steps+needed > pathmatch.MaxRouteSteps {
		for _, match := range matches {
			matchAnyPath(match.rule.Match)
		}
		return builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue,
			"matches: the regular expressions of the route up to this rule compile to %d instructions, the limit is %d",
			r.steps+needed, pathmatch.MaxRouteSteps)
	}
	r.steps += needed
	return nil
}

func matchAnyPath(of *resource.Match) {
	if of.GetPath().GetKind() == resource.PathMatch_REGULAR_EXPRESSION {
		of.Path = pathmatch.Superset(of.Path.Value)
	}
	isExpression := func(value *resource.ValueMatch) bool { return value.RegularExpression }
	of.Headers = slices.DeleteFunc(of.Headers, isExpression)
	of.QueryParameters = slices.DeleteFunc(of.QueryParameters, isExpression)
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
