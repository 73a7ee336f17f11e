// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

// external asks a Service for each request. Where it cannot be asked, nobody is served. One of
// another namespace sees the credentials of the clients, and takes their load: its namespace has to
// allow that by a ReferenceGrant, as to routes.
func (r *ingressRun) external(ingress *networkingv1.Ingress, of *nginx.External) *resource.Filter {
	asking := &resource.ExternalAuthorization{
		Path: of.Path, Host: of.Host, Method: of.Method, RequestHeaders: []string{"*"},
		ResponseHeaders: of.ResponseHeaders, SetCookies: true, SignIn: of.SignIn, Redirect: of.Redirect,
	}
	if of.Service == "" {
		// Its backend is that of a rule: findAsked finds it when all are known.
		r.asked[ingress].asking = asking
		return &resource.Filter{Kind: &resource.Filter_ExternalAuthorization{ExternalAuthorization: asking}}
	}
	at := key{of.Namespace, of.Service}
	if !r.permitted(referrer{kindIngress, ingress.Namespace}, kindService, at) {
		r.refuseIngress(ingress, "auth-url", fmt.Sprintf("no ReferenceGrant in %s lets an Ingress (networking.k8s.io) of %s refer to Service %s",
			at.namespace, ingress.Namespace, at.name))
		return nil
	}
	name, refused := r.service(at, "", of.Port, speech{protocol: resource.Backend_HTTP1, tls: of.TLS})
	if refused != nil {
		r.refuseIngress(ingress, "auth-url", refused.message)
		return nil
	}
	asking.Backend = name
	return &resource.Filter{Kind: &resource.Filter_ExternalAuthorization{ExternalAuthorization: asking}}
}

// maxMatches bounds the search for the rules to which questions go, of all Ingresses of a VIP.
const maxMatches = 1_000_000

// findAsked finds the backend that is asked about the requests of an Ingress at their own host.
// Where there is none, nobody is served.
func (r *ingressRun) findAsked(ingress *networkingv1.Ingress) {
	says := r.asked[ingress]
	if says == nil || says.isRefused || says.asking == nil {
		return
	}
	// The backend of the first host stands for all: the question has the host of its request.
	for i := range ingress.Spec.Rules {
		host, err := ownership.ParseHost(ingress.Spec.Rules[i].Host)
		if err != nil || r.hosts[host] == nil {
			continue
		}
		if of := r.ruleAt(ingress, host, says.asking.Path); of != nil && len(of.rule.Backends) == 1 && of.rule.Backends[0].Backend != "" {
			says.asking.Backend = of.rule.Backends[0].Backend
			return
		}
		break
	}
	for _, rule := range says.rules {
		rule.Backends, rule.Filters = nil, nil
	}
	r.refuseIngress(ingress, "auth-url", fmt.Sprintf("no other Ingress of the namespace leads %q at the host to a Service", says.asking.Path))
}

// ruleAt is the rule of another Ingress that takes a path of a host, and to whose Service an
// Ingress may refer; nil: there is none, or it is too much work. Others that share the host do not
// count: one with a longer path would decide who is let in.
func (r *ingressRun) ruleAt(ingress *networkingv1.Ingress, host hostname, target string) *ingressRule {
	parsed, err := url.ParseRequestURI(target)
	of := r.hosts[host]
	if r.matches += len(of.rules); err != nil || r.matches > maxMatches {
		return nil
	}
	paths := make([]ingressPath, 0, 1)
	for path, rule := range of.rules {
		if rule.ingress != ingress && rule.takes(parsed.Path) && r.mayAsk(ingress, rule) {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return of.rules[slices.MinFunc(paths, comparePaths)]
}

// mayAsk reports whether an Ingress may ask the Service of a rule: the rule is of the same namespace, or of an older
// Ingress whose namespace permits it by a ReferenceGrant.
func (r *ingressRun) mayAsk(ingress *networkingv1.Ingress, of *ingressRule) bool {
	return of.backend != nil && of.backend.Service != nil &&
		(of.ingress.Namespace == ingress.Namespace || r.ages[of.ingress] < r.ages[ingress]) &&
		r.permitted(referrer{kindIngress, ingress.Namespace}, kindService, key{of.ingress.Namespace, of.backend.Service.Name})
}

// takes reports whether a rule is of a path.
func (r *ingressRule) takes(path string) bool {
	switch of := r.rule.Match.GetPath(); of.GetKind() {
	case resource.PathMatch_EXACT:
		return path == decodedPath(of)
	case resource.PathMatch_PREFIX:
		return isBelow(path, decodedPath(of))
	default:
		if r.expression == nil {
			// It is valid: else the rule would not be there.
			r.expression = regexp.MustCompile("^(?:" + of.GetValue() + ")$")
		}
		return r.expression.MatchString(path)
	}
}
