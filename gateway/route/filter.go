// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// filter is a filter of an HTTPRoute or a GRPCRoute; the filters of GRPCRoutes are a subset of the
// HTTPRoute filters.
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

// filters refuses a rule with an unknown filter, because skipping it would be unsafe.
func (c *compilation) filters(of *route, filters []filter) ([]*resource.Filter, *refusal) {
	var found []*resource.Filter
	redirects, rewrites := false, false
	for i := range filters {
		made, refused := c.filter(of, &filters[i])
		if refused != nil {
			refused.message = fmt.Sprintf("filters[%d].%s", i, refused.message)
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
		return nil, refuse(ReasonInvalid, gatewayv1.RouteReasonIncompatibleFilters,
			"filters: a redirect and a rewrite exclude each other")
	}
	return found, nil
}

// filter returns nil for a mirror with an unresolved backend.
func (c *compilation) filter(of *route, filter *filter) (*resource.Filter, *refusal) {
	empty := refuse(ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "type: %s has no settings", filter.Type)
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
	return nil, refuse(ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue, "type: %s is not supported", filter.Type)
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

func redirect(of *gatewayv1.HTTPRequestRedirectFilter) (*resource.Filter, *refusal) {
	found := &resource.Redirect{
		Scheme: value(of.Scheme), Hostname: string(value(of.Hostname)), Port: uint32(value(of.Port)), Status: 302,
	}
	if of.StatusCode != nil {
		found.Status = uint32(*of.StatusCode)
	}
	switch found.Status {
	case 301, 302, 303, 307, 308:
	default:
		return nil, refuse(ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue,
			"requestRedirect.statusCode: %d is not the status of a redirect", found.Status)
	}
	if found.Scheme != "" && found.Scheme != "http" && found.Scheme != "https" {
		return nil, refuse(ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue,
			"requestRedirect.scheme: %q is neither http nor https", found.Scheme)
	}
	var refused *refusal
	found.Path, refused = pathChange(of.Path, "requestRedirect")
	return &resource.Filter{Kind: &resource.Filter_Redirect{Redirect: found}}, refused
}

func rewrite(of *gatewayv1.HTTPURLRewriteFilter) (*resource.Filter, *refusal) {
	path, refused := pathChange(of.Path, "urlRewrite")
	return &resource.Filter{Kind: &resource.Filter_Rewrite{
		Rewrite: &resource.Rewrite{Hostname: string(value(of.Hostname)), Path: path}}}, refused
}

func pathChange(of *gatewayv1.HTTPPathModifier, field string) (*resource.PathChange, *refusal) {
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
	return nil, refuse(ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "%s.path: type %s has no value", field, of.Type)
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

func checkPrefixMatches(filters []*resource.Filter, matches []*orderedRule) *refusal {
	if !replacesPrefix(filters) {
		return nil
	}
	for i, match := range matches {
		if match.rule.Match.Path.Kind != resource.PathMatch_PREFIX {
			return refuse(ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue,
				"matches[%d].path: replacePrefixMatch needs the type PathPrefix", i)
		}
	}
	return nil
}

func (c *compilation) mirror(of *route, filter *gatewayv1.HTTPRequestMirrorFilter) (*resource.Filter, *refusal) {
	protocol := resource.Backend_HTTP1
	if of.kind == kindGRPCRoute {
		protocol = resource.Backend_H2C
	}
	name, refused := c.resolveBackend(of, filter.BackendRef, upstream{protocol: protocol})
	if refused != nil {
		of.refuseResolved(refused.at("spec.rules[%d].filters.requestMirror.backendRef", of.ruleIndex))
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
	found := &resource.CORS{AllowCredentials: value(of.AllowCredentials), MaxAgeSeconds: 5}
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
