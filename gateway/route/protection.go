// SPDX-License-Identifier: Apache-2.0

package route

import (
	"maps"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// protectingPrefixes are those of annotations by which other controllers configure an Ingress.
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
	"k8s.apisix.apache.org":         true,
	"zalando.org":                   true,
}

// protectingNames are further such names. Some only may keep clients out: what they refer to is
// an object of the other controller.
var protectingNames = map[string]bool{
	"alb.ingress.kubernetes.io/inbound-cidrs":          true,
	"alb.ingress.kubernetes.io/mutual-authentication":  true,
	"alb.ingress.kubernetes.io/security-groups":        true,
	"haproxy.com/client-ca":                            true,
	"haproxy.org/client-ca":                            true,
	"ingress.kubernetes.io/client-ca":                  true,
	"k8s.apisix.apache.org/plugin-config-name":         true,
	"konghq.com/plugins":                               true,
	"nginx.org/policies":                               true,
	"traefik.ingress.kubernetes.io/router.middlewares": true,
	"traefik.ingress.kubernetes.io/router.tls.options": true,
	"zalando.org/skipper-filter":                       true,
	"appgw.ingress.kubernetes.io/ssl-profile":          true,
}

// unprotected tells of annotations by which another controller would keep clients out, and which
// are not carried out here: an Ingress that is moved to a class of ours is open.
func (c *compilation) unprotected(ingress *networkingv1.Ingress) {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(ingress.Annotations)) {
		if protects(name, ingress.Annotations[name]) && !c.carries(ingress, name) {
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		c.problem(ingressObject(ingress), "metadata.annotations", ReasonUnprotected,
			"clients are let in whom these annotations of other controllers keep out: "+strings.Join(found, ", "))
	}
}

// carries reports whether an annotation is carried out, or its Ingress refused for it.
func (c *compilation) carries(ingress *networkingv1.Ingress, name string) bool {
	return c.asked[ingress] != nil && strings.HasPrefix(name, nginx.Prefix)
}

// protects reports whether an annotation keeps clients out where its controller reads it.
func protects(name, value string) bool {
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

// harmless lists the kinds of filters that keep no client out. Any other kind might.
var harmless = map[gatewayv1.HTTPRouteFilterType]bool{
	gatewayv1.HTTPRouteFilterRequestHeaderModifier:  true,
	gatewayv1.HTTPRouteFilterResponseHeaderModifier: true,
	gatewayv1.HTTPRouteFilterRequestRedirect:        true,
	gatewayv1.HTTPRouteFilterURLRewrite:             true,
	gatewayv1.HTTPRouteFilterRequestMirror:          true,
	gatewayv1.HTTPRouteFilterCORS:                   true,
}

// protectsRule reports whether filters of a rule keep clients out, or might.
func protectsRule(filters []gatewayv1.HTTPRouteFilterType) bool {
	return slices.ContainsFunc(filters, func(of gatewayv1.HTTPRouteFilterType) bool { return !harmless[of] })
}

// httpRuleFilters returns the kinds of all filters of a rule and its backends.
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

// grpcRuleFilters returns the kinds of all filters of a rule and its backends.
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

// closedFor returns the rule for a refused match or action. If only the match is refused, the guards of
// the rule still answer before the 500.
func closedFor(made *resource.Rule, name string, match, action *refusal) *resource.Rule {
	switch {
	case action != nil:
		return &resource.Rule{Route: name}
	case match != nil:
		return closedRule(made)
	}
	return made
}

// closedRule returns a rule with the match and the guards of another rule, and without backends.
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
