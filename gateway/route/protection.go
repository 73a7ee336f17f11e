// SPDX-License-Identifier: Apache-2.0

package route

import (
	"maps"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/nginx"
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
