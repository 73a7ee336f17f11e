// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/pathmatch"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

// externalAuthorization returns the filter for an authorization request, or refuses the Ingress if the
// Service does not resolve. A Service of another namespace receives credentials and load of clients, so its
// namespace must permit the reference by a ReferenceGrant.
func (r *setCompiler) externalAuthorization(ingress *networkingv1.Ingress, of *nginx.External) *resource.Filter {
	request := &resource.ExternalAuthorization{
		Path: of.Path, Host: of.Host, Method: of.Method, RequestHeaders: []string{"*"},
		ResponseHeaders: of.ResponseHeaders, SetCookies: true, SignIn: of.SignIn, Redirect: of.Redirect,
	}
	if of.Service == "" {
		r.nginxSettings[ingress].authorization = request
		return &resource.Filter{Kind: &resource.Filter_ExternalAuthorization{ExternalAuthorization: request}}
	}
	at := types.NamespacedName{Namespace: of.Namespace, Name: of.Service}
	if !r.Permitted(builder.Referrer{Kind: model.KindIngress, Namespace: ingress.Namespace}, model.KindService, at) {
		r.refuseIngress(ingress, "auth-url", fmt.Sprintf("no ReferenceGrant in %s lets an Ingress (networking.k8s.io) of %s refer to Service %s",
			at.Namespace, ingress.Namespace, at.Name))
		return nil
	}
	name, refused := r.service(at, "", of.Port, builder.Upstream{Protocol: resource.Backend_HTTP1, Tls: of.TLS})
	if refused != nil {
		r.refuseIngress(ingress, "auth-url", refused.Message)
		return nil
	}
	request.Backend = name
	return &resource.Filter{Kind: &resource.Filter_ExternalAuthorization{ExternalAuthorization: request}}
}

// maxMatches limits the rule comparisons for authorization backends of all Ingresses of a VIP.
const maxMatches = 1_000_000

// resolveAuthorization sets the backend of the authorization request from another rule of the Ingress's host.
// Without such a rule it refuses the Ingress.
func (r *setCompiler) resolveAuthorization(ingress *networkingv1.Ingress) {
	settings := r.nginxSettings[ingress]
	if settings == nil || settings.isRefused || settings.authorization == nil {
		return
	}
	if settings.External.Host != "" {
		r.resolveAuthorizationAt(ingress)
		return
	}
	// The first host is used for all hosts, although an authorization request has the host of the client's
	// request.
	for i := range ingress.Spec.Rules {
		host, err := ownership.ParseHost(ingress.Spec.Rules[i].Host)
		if err != nil || r.hosts[host] == nil {
			continue
		}
		of := r.ruleAt(host, settings.authorization.Path, func(rule *ingressRule) bool { return rule.ingress != ingress && r.mayAuthorize(ingress, rule) })
		if of != nil && len(of.rule.Backends) == 1 && of.rule.Backends[0].Backend != "" {
			settings.authorization.Backend = of.rule.Backends[0].Backend
			return
		}
		break
	}
	r.refuseAuthorization(ingress, fmt.Sprintf("no other Ingress of the namespace routes %q at the host to a Service", settings.authorization.Path))
}

func (r *setCompiler) refuseAuthorization(ingress *networkingv1.Ingress, message string) {
	for _, rule := range r.nginxSettings[ingress].rules {
		rule.Backends, rule.Filters = nil, nil
	}
	r.refuseIngress(ingress, "auth-url", message)
}

// resolveAuthorizationAt sets the backend of the authorization request from a rule of another host, which its
// owner controls. Clients can request the path, too, so no ReferenceGrant is needed, unless the rule has
// guards, which authorization requests would bypass.
func (r *setCompiler) resolveAuthorizationAt(ingress *networkingv1.Ingress) {
	settings := r.nginxSettings[ingress]
	name, err := ownership.ParseHost(settings.External.Host)
	host, known := bestHost(r.hosts, name)
	if err != nil || !known || host == "" {
		r.refuseAuthorization(ingress, fmt.Sprintf("no Ingress of the class serves %s: %s", settings.External.Host, nginx.WantedURL))
		return
	}
	of := r.ruleAt(host, settings.authorization.Path, func(rule *ingressRule) bool {
		return rule.ingress.Namespace == ingress.Namespace ||
			r.owners.Owns(name, rule.ingress.Namespace) && r.ages[rule.ingress] < r.ages[ingress]
	})
	switch {
	case of == nil, len(of.rule.Backends) != 1, of.rule.Backends[0].Backend == "":
		r.refuseAuthorization(ingress, fmt.Sprintf("no Ingress of the namespace, and no older Ingress of the host's owner, routes %q at %s to a Service: %s",
			settings.authorization.Path, settings.External.Host, nginx.WantedURL))
	case slices.ContainsFunc(of.rule.Filters, blocksAuthorization):
		r.refuseAuthorization(ingress, fmt.Sprintf("the Ingress that serves %q at %s restricts clients or rewrites the path: %s",
			settings.authorization.Path, settings.External.Host, nginx.WantedURL))
	default:
		settings.authorization.Backend = of.rule.Backends[0].Backend
	}
}

func blocksAuthorization(filter *resource.Filter) bool {
	switch filter.Kind.(type) {
	case *resource.Filter_ClientAddresses, *resource.Filter_BasicAuthentication, *resource.Filter_ExternalAuthorization,
		*resource.Filter_Redirect:
		return true
	}
	return filter.GetRewrite().GetPath() != nil
}

// ruleAt returns the rule of a host that matches a target and satisfies may. Rules of other namespaces do not
// hide it, even if their paths are longer. It returns nil without such a rule, and after maxMatches
// comparisons.
func (r *setCompiler) ruleAt(host ownership.Host, target string, may func(*ingressRule) bool) *ingressRule {
	parsed, err := url.ParseRequestURI(target)
	of := r.hosts[host]
	if r.matches += len(of.rules); err != nil || r.matches > maxMatches {
		return nil
	}
	paths := make([]ingressPath, 0, 1)
	for path, rule := range of.rules {
		if rule.matches(parsed.Path) && may(rule) {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return of.rules[slices.MinFunc(paths, comparePaths)]
}

// mayAuthorize reports whether an Ingress may send authorization requests to the backend of a rule: the rule
// is in the same namespace, or of an older Ingress whose namespace permits the reference.
func (r *setCompiler) mayAuthorize(ingress *networkingv1.Ingress, of *ingressRule) bool {
	return of.backend != nil && of.backend.Service != nil &&
		(of.ingress.Namespace == ingress.Namespace || r.ages[of.ingress] < r.ages[ingress]) &&
		r.Permitted(builder.Referrer{Kind: model.KindIngress, Namespace: ingress.Namespace}, model.KindService, types.NamespacedName{Namespace: of.ingress.Namespace, Name: of.backend.Service.Name})
}

func (r *ingressRule) matches(path string) bool {
	switch of := r.rule.Match.GetPath(); of.GetKind() {
	case resource.PathMatch_EXACT:
		return path == pathmatch.Decoded(of)
	case resource.PathMatch_PREFIX:
		return isBelow(path, pathmatch.Decoded(of))
	default:
		if r.expression == nil {
			r.expression = regexp.MustCompile("^(?:" + of.GetValue() + ")$")
		}
		return r.expression.MatchString(path)
	}
}
