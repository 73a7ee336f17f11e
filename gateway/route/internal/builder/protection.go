// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"maps"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// protectingPrefixes are annotation prefixes of other controllers of Ingresses and routes.
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
	"zalando.org":                   true,
}

// opaquePrefixes are those of controllers whose annotations may all restrict clients.
var opaquePrefixes = map[string]bool{
	"contour.networking.knative.dev": true,
	"gloo.solo.io":                   true,
	"ingress.cilium.io":              true,
	"ingress.citrix.com":             true,
	"route.openshift.io":             true,
}

// protectingNames are further annotations that restrict clients or may do so.
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
	"networking.gke.io/v1beta1.FrontendConfig":         true,
	"nginx.ingress.kubernetes.io/limit-connections":    true,
	"nginx.ingress.kubernetes.io/limit-rpm":            true,
	"nginx.ingress.kubernetes.io/limit-rps":            true,
	"nginx.org/policies":                               true,
	"projectcontour.io/ingress.class":                  true,
	"traefik.ingress.kubernetes.io/router.entrypoints": true,
	"traefik.ingress.kubernetes.io/router.middlewares": true,
	"traefik.ingress.kubernetes.io/router.tls.options": true,
	"zalando.org/skipper-filter":                       true,
	"appgw.ingress.kubernetes.io/ssl-profile":          true,
}

// protectingValues are annotations that restrict clients only with this value.
var protectingValues = map[string]string{
	"alb.ingress.kubernetes.io/scheme": "internal",
	"kubernetes.io/ingress.allow-http": "false",
	"tailscale.com/funnel":             "false",
}

// ReportUnprotected adds a problem if an object has annotations of other controllers that restrict clients
// and have no effect here.
func (c *Builder) ReportUnprotected(object model.Object, annotations map[string]string, carriesNginx bool) {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		isCarried := carriesNginx && strings.HasPrefix(name, nginx.Prefix)
		if !isCarried && (Protects(name, annotations[name]) || isSnippet(name)) {
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		c.AddProblem(object, "metadata.annotations", model.ReasonRestrictionIgnored,
			"annotations of other controllers that restrict clients, or may, have no effect: "+strings.Join(found, ", "))
	}
}

// isSnippet reports whether an annotation is a configuration snippet for another proxy, which may restrict
// clients.
func isSnippet(name string) bool {
	prefix, rest, _ := strings.Cut(name, "/")
	return protectingPrefixes[prefix] && (strings.HasSuffix(rest, "-snippet") || strings.HasSuffix(rest, "-snippets"))
}

// Protects reports whether an annotation of another controller restricts clients or may do so.
func Protects(name, value string) bool {
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
	if !protectingPrefixes[prefix] {
		// Many in-house controllers use a domain such as auth.example.com.
		domain, _, _ := strings.Cut(prefix, ".")
		return opaquePrefixes[prefix] || nginx.Protects(domain)
	}
	return !strings.HasPrefix(rest, "cors-") && nginx.Protects(rest)
}
