// SPDX-License-Identifier: Apache-2.0

package route

import (
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// externalAuth reads an ExternalAuth filter (GEP-1494). The rule answers 500 if the backend does not resolve.
func (c *compilation) externalAuth(of *route, filter *gatewayv1.HTTPExternalAuthFilter) (*resource.Filter, *refusal) {
	switch {
	case filter == nil:
		return nil, refuse(ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "type: ExternalAuth has no settings")
	case filter.ExternalAuthProtocol != gatewayv1.HTTPRouteExternalAuthHTTPProtocol:
		return nil, refuse(ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue,
			"externalAuth.protocol: %s is not supported, only HTTP", filter.ExternalAuthProtocol)
	case filter.ForwardBody != nil && filter.ForwardBody.MaxSize > 0:
		return nil, refuse(ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue,
			"externalAuth.forwardBody: bodies are not sent to authorization servers")
	}
	made := authorizationRequest(filter.HTTPAuthConfig)
	name, refused := c.resolveBackend(of, filter.BackendRef, upstream{protocol: resource.Backend_HTTP1})
	if refused != nil {
		of.refuseResolved(refused.at("spec.rules[%d].filters.externalAuth.backendRef", of.ruleIndex))
		of.isAuthUnresolved = true
		return nil, nil
	}
	made.Backend = name
	if err := plan.CheckAuthorization(made); err != nil {
		return nil, refuse(ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "externalAuth: %v", err)
	}
	return &resource.Filter{Kind: &resource.Filter_ExternalAuthorization{ExternalAuthorization: made}}, nil
}

func authorizationRequest(with *gatewayv1.HTTPAuthConfig) *resource.ExternalAuthorization {
	made := &resource.ExternalAuthorization{AsRequested: true, OnlyOk: true, ResponseHeaders: []string{"*"}}
	if with == nil {
		return made
	}
	// The proxy appends the path of the client's request, which begins with a slash.
	if made.Path = strings.Trim(with.Path, "/"); made.Path != "" {
		made.Path = "/" + made.Path
	}
	for _, name := range with.AllowedRequestHeaders {
		if !alwaysSent[strings.ToLower(name)] {
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

var alwaysSent = map[string]bool{"host": true, "method": true, "path": true, "content-length": true, "authorization": true, "*": true}

// limitExternalAuth refuses more than most filters: one for a rule, 0 for its backends.
func limitExternalAuth(filters []*resource.Filter, most int) *refusal {
	for _, filter := range filters {
		if filter.GetExternalAuthorization() == nil {
			continue
		}
		if most--; most < 0 {
			return refuse(ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue,
				"filters: a rule can have only one ExternalAuth filter, and not on its backends")
		}
	}
	return nil
}
