// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"strings"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Ranks of an HTTPRoute's matches (Gateway API: HTTPRouteRule.matches): exact paths, regular
// expressions, prefixes; then the longer path; a method; more headers; more parameters.
const (
	rankPrefix = iota
	rankRegularExpression
	rankExact
)

// httpMatches reads the matches of a rule. None is a match of all.
func httpMatches(of []gatewayv1.HTTPRouteMatch) ([]*orderedRule, *refusal) {
	if len(of) == 0 {
		of = []gatewayv1.HTTPRouteMatch{{}}
	}
	found := make([]*orderedRule, 0, len(of))
	for i := range of {
		match, refused := httpMatch(&of[i])
		if refused != nil {
			refused.message = fmt.Sprintf("matches[%d].%s", i, refused.message)
			return nil, refused
		}
		found = append(found, match)
	}
	return found, nil
}

// httpMatch reads one match and its rank.
func httpMatch(of *gatewayv1.HTTPRouteMatch) (*orderedRule, *refusal) {
	path, rank, refused := pathMatch(of.Path)
	if refused != nil {
		return nil, refused
	}
	match := &resource.Match{Path: path, Method: string(value(of.Method))}
	for i, header := range of.Headers {
		regular := value(header.Type) == gatewayv1.HeaderMatchRegularExpression
		if match.Headers, refused = addValue(match.Headers, strings.ToLower(string(header.Name)), header.Value, regular); refused != nil {
			refused.message = fmt.Sprintf("headers[%d]: %s", i, refused.message)
			return nil, refused
		}
	}
	for i, parameter := range of.QueryParams {
		regular := value(parameter.Type) == gatewayv1.QueryParamMatchRegularExpression
		if match.QueryParameters, refused = addValue(match.QueryParameters, string(parameter.Name), parameter.Value, regular); refused != nil {
			refused.message = fmt.Sprintf("queryParams[%d]: %s", i, refused.message)
			return nil, refused
		}
	}
	return &orderedRule{rule: &resource.Rule{Match: match}, rank: [6]int{
		rank, len(path.Value), number(match.Method != ""), len(match.Headers), len(match.QueryParameters),
	}}, nil
}

// pathMatch reads a path. None is all paths.
func pathMatch(of *gatewayv1.HTTPPathMatch) (*resource.PathMatch, int, *refusal) {
	found, rank := &resource.PathMatch{Value: "/"}, rankPrefix
	if of == nil {
		return found, rank, nil
	}
	if of.Value != nil {
		found.Value = *of.Value
	}
	switch kind := value(of.Type); kind {
	case gatewayv1.PathMatchPathPrefix, "":
	case gatewayv1.PathMatchExact:
		found.Kind, rank = resource.PathMatch_EXACT, rankExact
	case gatewayv1.PathMatchRegularExpression:
		found.Kind, rank = resource.PathMatch_REGULAR_EXPRESSION, rankRegularExpression
		if err := validExpression(found.Value); err != nil {
			return nil, 0, refuse(ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "path.value: %v", err)
		}
		return found, rank, nil
	default:
		return nil, 0, refuse(ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue, "path.type: there is no %s", kind)
	}
	var err error
	if found.Value, err = canonicalPath(found.Value); err != nil {
		return nil, 0, refuse(ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "path.value: %v", err)
	}
	if found.Kind == resource.PathMatch_PREFIX {
		found.Value = trimPrefix(found.Value)
	}
	return found, rank, nil
}

// addValue adds a match of a value. Of two with one name the first counts (Gateway API).
func addValue(to []*resource.ValueMatch, name, text string, regular bool) ([]*resource.ValueMatch, *refusal) {
	for _, known := range to {
		if known.Name == name {
			return to, nil
		}
	}
	if regular {
		if err := validExpression(text); err != nil {
			return nil, refuse(ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "%v", err)
		}
	}
	return append(to, &resource.ValueMatch{Name: name, Value: text, RegularExpression: regular}), nil
}

// milliseconds reads a duration of Gateway API (GEP-2257).
func milliseconds(of *gatewayv1.Duration, field string) (uint64, *refusal) {
	if of == nil {
		return 0, nil
	}
	duration, err := time.ParseDuration(string(*of))
	if err != nil || duration < 0 {
		return 0, refuse(ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "%s: %q is not a duration", field, *of)
	}
	return uint64(duration.Milliseconds()), nil
}
