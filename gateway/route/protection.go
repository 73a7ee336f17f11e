// SPDX-License-Identifier: Apache-2.0

package route

import (
	"maps"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// protectingPrefixes are the annotation prefixes of other controllers of Ingresses and routes.
var protectingPrefixes = map[string]bool{
	"nginx.ingress.kubernetes.io":   true, // ingress-nginx
	"ingress.kubernetes.io":         true, // older ingress-nginx, HAProxy and Traefik
	"haproxy.org":                   true,
	"haproxy.com":                   true,
	"haproxy-ingress.github.io":     true,
	"haproxy.router.openshift.io":   true,
	"traefik.ingress.kubernetes.io": true,
	"nginx.org":                     true,
	"nginx.com":                     true,
	"appprotect.f5.com":             true,
	"appprotectdos.f5.com":          true,
	"konghq.com":                    true,
	"alb.ingress.kubernetes.io":     true,
	"appgw.ingress.kubernetes.io":   true,
	"apisix.apache.org":             true,
	"k8s.apisix.apache.org":         true,
	"higress.io":                    true,
	"cloud.google.com":              true,
	"networking.gke.io":             true,
	"projectcontour.io":             true,
	"gateway.envoyproxy.io":         true,
	"ingress.citrix.com":            true,
	"gloo.solo.io":                  true,
	"zalando.org":                   true,
}

// protectingNames are further annotations that restrict clients, or may.
var protectingNames = map[string]bool{
	"alb.ingress.kubernetes.io/inbound-cidrs":          true,
	"alb.ingress.kubernetes.io/mutual-authentication":  true,
	"alb.ingress.kubernetes.io/security-groups":        true,
	"apisix.apache.org/plugin-config-name":             true,
	"cloud.google.com/armor-config":                    true,
	"getambassador.io/config":                          true,
	"haproxy.com/client-ca":                            true,
	"haproxy.org/client-ca":                            true,
	"ingress.kubernetes.io/client-ca":                  true,
	"k8s.apisix.apache.org/plugin-config-name":         true,
	"konghq.com/methods":                               true,
	"konghq.com/plugins":                               true,
	"konghq.com/protocols":                             true,
	"nginx.org/policies":                               true,
	"traefik.ingress.kubernetes.io/router.entrypoints": true,
	"traefik.ingress.kubernetes.io/router.middlewares": true,
	"traefik.ingress.kubernetes.io/router.tls.options": true,
	"zalando.org/skipper-filter":                       true,
	"appgw.ingress.kubernetes.io/ssl-profile":          true,
}

// protectingValues are annotations that restrict clients with one value only.
var protectingValues = map[string]string{
	"alb.ingress.kubernetes.io/scheme": "internal",
	"kubernetes.io/ingress.allow-http": "false",
	"tailscale.com/funnel":             "false",
}

// unprotected adds a problem for restricting annotations of other controllers without effect here.
func (c *compilation) unprotected(object Object, annotations map[string]string, carriesNginx bool) {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		isCarried := carriesNginx && strings.HasPrefix(name, nginx.Prefix)
		if !isCarried && (protects(name, annotations[name]) || isSnippet(name)) {
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		c.problem(object, "metadata.annotations", ReasonUnprotected,
			"annotations of other controllers that restrict clients have no effect: "+strings.Join(found, ", "))
	}
}

// isSnippet reports another proxy's configuration snippet, which may restrict clients.
func isSnippet(name string) bool {
	prefix, rest, _ := strings.Cut(name, "/")
	return protectingPrefixes[prefix] && (strings.HasSuffix(rest, "-snippet") || strings.HasSuffix(rest, "-snippets"))
}

func protects(name, value string) bool {
	if wanted, is := protectingValues[name]; is {
		return strings.EqualFold(strings.TrimSpace(value), wanted)
	}
	if nginx.IsOff(value) {
		return false
	}
	if protectingNames[name] {
		return true
	}
	prefix, rest, _ := strings.Cut(name, "/")
	if !protectingPrefixes[prefix] || strings.HasPrefix(rest, "cors-") {
		return false
	}
	return nginx.Protects(rest)
}

// harmless are the types of filters that reject no request. Any other type might.
var harmless = map[gatewayv1.HTTPRouteFilterType]bool{
	gatewayv1.HTTPRouteFilterRequestHeaderModifier:  true,
	gatewayv1.HTTPRouteFilterResponseHeaderModifier: true,
	gatewayv1.HTTPRouteFilterRequestRedirect:        true,
	gatewayv1.HTTPRouteFilterURLRewrite:             true,
	gatewayv1.HTTPRouteFilterRequestMirror:          true,
	gatewayv1.HTTPRouteFilterCORS:                   true,
}

func protectsRule(filters []gatewayv1.HTTPRouteFilterType) bool {
	return slices.ContainsFunc(filters, func(of gatewayv1.HTTPRouteFilterType) bool { return !harmless[of] })
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

// closedFor replaces a rule with a refused match or action. Without a refused action its guards still run
// before the 500.
func closedFor(made *resource.Rule, name string, match, action *refusal) *resource.Rule {
	switch {
	case action != nil:
		return &resource.Rule{Route: name}
	case match != nil:
		return closedRule(made)
	}
	return made
}

// closedRule returns the rule with its match and guards only. Without backends it answers 500.
func closedRule(of *resource.Rule) *resource.Rule {
	closed := &resource.Rule{Route: of.Route, Match: of.Match}
	for _, filter := range of.Filters {
		switch filter.Kind.(type) {
		case *resource.Filter_ClientAddresses, *resource.Filter_ClientLimit, *resource.Filter_BasicAuthentication,
			*resource.Filter_ExternalAuthorization:
			closed.Filters = append(closed.Filters, filter)
		}
	}
	return closed
}
