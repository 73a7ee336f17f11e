// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// filter is a filter of an HTTPRoute or a GRPCRoute. The filters of GRPCRoutes are a subset of those of
// HTTPRoutes.
type filter = gatewayv1.HTTPRouteFilter

func httpFilters(of []gatewayv1.HTTPRouteFilter) []filter { return of }

func grpcFilters(of []gatewayv1.GRPCRouteFilter) []filter {
	found := make([]filter, 0, len(of))
	for _, each := range of {
		found = append(found, filter{
			Type:                   gatewayv1.HTTPRouteFilterType(each.Type),
			RequestHeaderModifier:  each.RequestHeaderModifier,
			ResponseHeaderModifier: each.ResponseHeaderModifier,
			RequestMirror:          each.RequestMirror,
			ExtensionRef:           each.ExtensionRef,
		})
	}
	return found
}

// filters compiles the filters of a rule. It refuses an unknown filter, because ignoring it would be unsafe.
func (c *compiler) filters(of *route, filters []filter) ([]*resource.Filter, *builder.Refusal) {
	var found []*resource.Filter
	redirects, rewrites := false, false
	for i := range filters {
		made, refused := c.filter(of, &filters[i])
		if refused != nil {
			refused.Message = fmt.Sprintf("filters[%d].%s", i, refused.Message)
			return nil, refused
		}
		if made == nil {
			continue
		}
		redirects = redirects || made.GetRedirect() != nil
		rewrites = rewrites || made.GetRewrite() != nil
		found = append(found, made)
	}
	if redirects && rewrites {
		return nil, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonIncompatibleFilters,
			"filters: a redirect and a rewrite exclude each other")
	}
	return found, nil
}

// filter compiles a filter. It returns nil for a mirror whose backend does not resolve.
func (c *compiler) filter(of *route, filter *filter) (*resource.Filter, *builder.Refusal) {
	empty := builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "type: %s has no settings", filter.Type)
	switch filter.Type {
	case gatewayv1.HTTPRouteFilterRequestHeaderModifier:
		if filter.RequestHeaderModifier == nil {
			return nil, empty
		}
		return &resource.Filter{Kind: &resource.Filter_RequestHeaders{
			RequestHeaders: headerChange(filter.RequestHeaderModifier)}}, nil
	case gatewayv1.HTTPRouteFilterResponseHeaderModifier:
		if filter.ResponseHeaderModifier == nil {
			return nil, empty
		}
		return &resource.Filter{Kind: &resource.Filter_ResponseHeaders{
			ResponseHeaders: headerChange(filter.ResponseHeaderModifier)}}, nil
	case gatewayv1.HTTPRouteFilterRequestRedirect:
		if filter.RequestRedirect == nil {
			return nil, empty
		}
		return redirect(filter.RequestRedirect)
	case gatewayv1.HTTPRouteFilterURLRewrite:
		if filter.URLRewrite == nil {
			return nil, empty
		}
		return rewrite(filter.URLRewrite)
	case gatewayv1.HTTPRouteFilterRequestMirror:
		if filter.RequestMirror == nil {
			return nil, empty
		}
		return c.mirror(of, filter.RequestMirror)
	case gatewayv1.HTTPRouteFilterExternalAuth:
		return c.externalAuth(of, filter.ExternalAuth)
	case gatewayv1.HTTPRouteFilterCORS:
		if filter.CORS == nil {
			return nil, empty
		}
		return &resource.Filter{Kind: &resource.Filter_Cors{Cors: cors(filter.CORS)}}, nil
	}
	return nil, builder.Refuse(model.ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue, "type: %s is not supported", filter.Type)
}

func headerChange(of *gatewayv1.HTTPHeaderFilter) *resource.HeaderChange {
	headers := func(of []gatewayv1.HTTPHeader) []*resource.Header {
		var found []*resource.Header
		for _, header := range of {
			found = append(found, &resource.Header{Name: string(header.Name), Value: header.Value})
		}
		return found
	}
	return &resource.HeaderChange{Set: headers(of.Set), Add: headers(of.Add), Remove: of.Remove}
}

func redirect(of *gatewayv1.HTTPRequestRedirectFilter) (*resource.Filter, *builder.Refusal) {
	found := &resource.Redirect{
		Scheme: ptr.Deref(of.Scheme, ""), Hostname: string(ptr.Deref(of.Hostname, "")), Port: uint32(ptr.Deref(of.Port, 0)), Status: 302,
	}
	if of.StatusCode != nil {
		found.Status = uint32(*of.StatusCode)
	}
	switch found.Status {
	case 301, 302, 303, 307, 308:
	default:
		return nil, builder.Refuse(model.ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue,
			"requestRedirect.statusCode: %d is not the status of a redirect", found.Status)
	}
	if found.Scheme != "" && found.Scheme != "http" && found.Scheme != "https" {
		return nil, builder.Refuse(model.ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue,
			"requestRedirect.scheme: %q is neither http nor https", found.Scheme)
	}
	var refused *builder.Refusal
	found.Path, refused = pathChange(of.Path, "requestRedirect")
	return &resource.Filter{Kind: &resource.Filter_Redirect{Redirect: found}}, refused
}

func rewrite(of *gatewayv1.HTTPURLRewriteFilter) (*resource.Filter, *builder.Refusal) {
	path, refused := pathChange(of.Path, "urlRewrite")
	return &resource.Filter{Kind: &resource.Filter_Rewrite{
		Rewrite: &resource.Rewrite{Hostname: string(ptr.Deref(of.Hostname, "")), Path: path}}}, refused
}

func pathChange(of *gatewayv1.HTTPPathModifier, field string) (*resource.PathChange, *builder.Refusal) {
	if of == nil {
		return nil, nil
	}
	switch {
	case of.Type == gatewayv1.FullPathHTTPPathModifier && of.ReplaceFullPath != nil:
		path := "/" + strings.TrimPrefix(*of.ReplaceFullPath, "/")
		return &resource.PathChange{Kind: &resource.PathChange_ReplaceFullPath{ReplaceFullPath: path}}, nil
	case of.Type == gatewayv1.PrefixMatchHTTPPathModifier && of.ReplacePrefixMatch != nil:
		return &resource.PathChange{Kind: &resource.PathChange_ReplacePrefix{ReplacePrefix: *of.ReplacePrefixMatch}}, nil
	}
	return nil, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "%s.path: type %s has no value", field, of.Type)
}

func replacesPrefix(filters []*resource.Filter) bool {
	for _, filter := range filters {
		for _, path := range []*resource.PathChange{filter.GetRedirect().GetPath(), filter.GetRewrite().GetPath()} {
			if _, prefix := path.GetKind().(*resource.PathChange_ReplacePrefix); prefix {
				return true
			}
		}
	}
	return false
}

func checkPrefixMatches(filters []*resource.Filter, matches []*orderedRule) *builder.Refusal {
	if !replacesPrefix(filters) {
		return nil
	}
	for i, match := range matches {
		if match.rule.Match.Path.Kind != resource.PathMatch_PREFIX {
			return builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue,
				"matches[%d].path: replacePrefixMatch needs the type PathPrefix", i)
		}
	}
	return nil
}

func (c *compiler) mirror(of *route, filter *gatewayv1.HTTPRequestMirrorFilter) (*resource.Filter, *builder.Refusal) {
	protocol := resource.Backend_HTTP1
	if of.kind == model.KindGRPCRoute {
		protocol = resource.Backend_H2C
	}
	name, refused := c.resolveBackend(of, filter.BackendRef, builder.Upstream{Protocol: protocol})
	if refused != nil {
		of.refuseResolved(refused.At("spec.rules[%d].filters.requestMirror.backendRef", of.ruleIndex))
		return nil, nil
	}
	found := &resource.Mirror{Backend: name}
	switch {
	case filter.Percent != nil:
		found.Numerator, found.Denominator = uint32(max(*filter.Percent, 0)), 100
	case filter.Fraction != nil:
		found.Numerator, found.Denominator = uint32(max(filter.Fraction.Numerator, 0)), 100
		if filter.Fraction.Denominator != nil {
			found.Denominator = uint32(max(*filter.Fraction.Denominator, 1))
		}
	}
	return &resource.Filter{Kind: &resource.Filter_Mirror{Mirror: found}}, nil
}

func cors(of *gatewayv1.HTTPCORSFilter) *resource.CORS {
	found := &resource.CORS{AllowCredentials: ptr.Deref(of.AllowCredentials, false), MaxAgeSeconds: 5}
	if of.MaxAge > 0 {
		found.MaxAgeSeconds = uint32(of.MaxAge)
	}
	for _, origin := range of.AllowOrigins {
		found.AllowOrigins = append(found.AllowOrigins, string(origin))
	}
	for _, method := range of.AllowMethods {
		found.AllowMethods = append(found.AllowMethods, string(method))
	}
	for _, header := range of.AllowHeaders {
		found.AllowHeaders = append(found.AllowHeaders, string(header))
	}
	for _, header := range of.ExposeHeaders {
		found.ExposeHeaders = append(found.ExposeHeaders, string(header))
	}
	return found
}

// nonRejectingFilters are the types of filters that never reject a request. All other types may do so.
var nonRejectingFilters = map[gatewayv1.HTTPRouteFilterType]bool{
	gatewayv1.HTTPRouteFilterRequestHeaderModifier:  true,
	gatewayv1.HTTPRouteFilterResponseHeaderModifier: true,
	gatewayv1.HTTPRouteFilterRequestRedirect:        true,
	gatewayv1.HTTPRouteFilterURLRewrite:             true,
	gatewayv1.HTTPRouteFilterRequestMirror:          true,
	gatewayv1.HTTPRouteFilterCORS:                   true,
}

func protectsRule(filters []gatewayv1.HTTPRouteFilterType) bool {
	return slices.ContainsFunc(filters, func(of gatewayv1.HTTPRouteFilterType) bool { return !nonRejectingFilters[of] })
}

func httpRuleFilters(rule *gatewayv1.HTTPRouteRule) (kinds []gatewayv1.HTTPRouteFilterType) {
	add := func(filters []gatewayv1.HTTPRouteFilter) {
		for i := range filters {
			kinds = append(kinds, filters[i].Type)
		}
	}
	add(rule.Filters)
	for i := range rule.BackendRefs {
		add(rule.BackendRefs[i].Filters)
	}
	return kinds
}

func grpcRuleFilters(rule *gatewayv1.GRPCRouteRule) (kinds []gatewayv1.HTTPRouteFilterType) {
	add := func(filters []gatewayv1.GRPCRouteFilter) {
		for i := range filters {
			kinds = append(kinds, gatewayv1.HTTPRouteFilterType(filters[i].Type))
		}
	}
	add(rule.Filters)
	for i := range rule.BackendRefs {
		add(rule.BackendRefs[i].Filters)
	}
	return kinds
}

// closedFor returns the rule that replaces a rule with a refused match or action. With a refused match only,
// the rule's guards still run before the 500.
func closedFor(made *resource.Rule, name string, match, action *builder.Refusal) *resource.Rule {
	switch {
	case action != nil:
		return &resource.Rule{Route: name}
	case match != nil:
		return builder.ClosedRule(made)
	}
	return made
}

// externalAuth compiles an ExternalAuth filter (GEP-1494). If the backend does not resolve, the rule answers
// 500.
func (c *compiler) externalAuth(of *route, filter *gatewayv1.HTTPExternalAuthFilter) (*resource.Filter, *builder.Refusal) {
	switch {
	case filter == nil:
		return nil, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "type: ExternalAuth has no settings")
	case filter.ExternalAuthProtocol != gatewayv1.HTTPRouteExternalAuthHTTPProtocol:
		return nil, builder.Refuse(model.ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue,
			"externalAuth.protocol: %s is not supported, only HTTP", filter.ExternalAuthProtocol)
	case filter.ForwardBody != nil && filter.ForwardBody.MaxSize > 0:
		return nil, builder.Refuse(model.ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue,
			"externalAuth.forwardBody: bodies are not sent to authorization servers")
	}
	made := authorizationRequest(filter.HTTPAuthConfig)
	name, refused := c.resolveBackend(of, filter.BackendRef, builder.Upstream{Protocol: resource.Backend_HTTP1})
	if refused != nil {
		of.refuseResolved(refused.At("spec.rules[%d].filters.externalAuth.backendRef", of.ruleIndex))
		of.isAuthUnresolved = true
		return nil, nil
	}
	made.Backend = name
	if err := plan.CheckAuthorization(made); err != nil {
		return nil, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "externalAuth: %v", err)
	}
	return &resource.Filter{Kind: &resource.Filter_ExternalAuthorization{ExternalAuthorization: made}}, nil
}

func authorizationRequest(with *gatewayv1.HTTPAuthConfig) *resource.ExternalAuthorization {
	made := &resource.ExternalAuthorization{AsRequested: true, OnlyOk: true, ResponseHeaders: []string{"*"}}
	if with == nil {
		return made
	}
	// The proxy appends the path of the client's request, which starts with a slash.
	if made.Path = strings.Trim(with.Path, "/"); made.Path != "" {
		made.Path = "/" + made.Path
	}
	for _, name := range with.AllowedRequestHeaders {
		if !alwaysSentHeaders[strings.ToLower(name)] {
			made.RequestHeaders = append(made.RequestHeaders, name)
		}
	}
	for _, name := range with.AllowedResponseHeaders {
		if lower := strings.ToLower(name); lower != "host" && lower != "authority" && name != "*" {
			made.ResponseHeaders = append(made.ResponseHeaders, name)
		}
	}
	if len(with.AllowedResponseHeaders) > 0 {
		made.ResponseHeaders = made.ResponseHeaders[1:]
	}
	return made
}

var alwaysSentHeaders = map[string]bool{"host": true, "method": true, "path": true, "content-length": true, "authorization": true, "*": true}

// limitExternalAuth refuses more than most ExternalAuth filters: 1 for a rule, 0 for its backends.
func limitExternalAuth(filters []*resource.Filter, most int) *builder.Refusal {
	for _, filter := range filters {
		if filter.GetExternalAuthorization() == nil {
			continue
		}
		if most--; most < 0 {
			return builder.Refuse(model.ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue,
				"filters: a rule can have only one ExternalAuth filter, and not on its backends")
		}
	}
	return nil
}
