// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// ingressPath is a path and how it matches.
type ingressPath struct {
	kind  resource.PathMatch_Kind
	value string
}

// addRules reads the rules of an Ingress.
func (r *ingressRun) addRules(ingress *networkingv1.Ingress) {
	redirect := r.ingressBool(ingress, AnnotationSSLRedirect, r.class.sslRedirect)
	fallback := r.addDefault(ingress, redirect)
	for i := range ingress.Spec.Rules {
		rule := &ingress.Spec.Rules[i]
		name, err := parseHostname(rule.Host)
		if err != nil {
			r.problem(ingressObject(ingress), fmt.Sprintf("spec.rules[%d].host", i), ReasonInvalid, err.Error())
			continue
		}
		host := r.host(name)
		if host.fallback == nil {
			host.fallback = fallback
		}
		if redirect && !r.secured(name) {
			r.problem(ingressObject(ingress), "metadata.annotations["+AnnotationSSLRedirect+"]", ReasonNotFound,
				"there is no certificate for "+displayed(name)+", which is served without TLS")
		}
		if rule.HTTP == nil {
			continue
		}
		for j := range rule.HTTP.Paths {
			r.addPath(ingress, host, &rule.HTTP.Paths[j], ingressAt{i, j, redirect})
		}
	}
}

// host gives what is said about a host.
func (r *ingressRun) host(name hostname) *ingressHost {
	if r.hosts[name] == nil {
		r.hosts[name] = &ingressHost{rules: make(map[ingressPath]*ingressRule, 1)}
	}
	return r.hosts[name]
}

// secured reports whether a host has TLS, or an Ingress wants it. Where it is wanted and
// cannot be had, plain text would break a promise.
func (r *ingressRun) secured(host hostname) bool {
	if _, ok := bestHost(r.tls, host); ok {
		return true
	}
	_, ok := bestHost(r.wanted, host)
	return ok || r.class.defaultCertificate.name != ""
}

// ingressAt is where a path is in its Ingress.
type ingressAt struct {
	rule, path int
	redirect   bool
}

func (a ingressAt) field() string {
	return fmt.Sprintf("spec.rules[%d].http.paths[%d]", a.rule, a.path)
}

// addPath adds one path. Of two that are equal the older object's stays.
func (r *ingressRun) addPath(
	ingress *networkingv1.Ingress, host *ingressHost, path *networkingv1.HTTPIngressPath, at ingressAt,
) {
	match, err := parseIngressPath(path)
	if err != nil {
		r.problem(ingressObject(ingress), at.field()+".path", ReasonInvalid, err.Error())
		return
	}
	if older := host.rules[match]; older != nil {
		r.problem(ingressObject(ingress), at.field()+".path", ReasonConflict,
			fmt.Sprintf("the path is also of Ingress %s/%s, %s", older.ingress.Namespace, older.ingress.Name, older.rule.Route))
		return
	}
	host.rules[match] = &ingressRule{ingress: ingress, redirect: at.redirect, rule: &resource.Rule{
		Route: "ingress/" + ingress.Namespace + "/" + ingress.Name + "/" +
			strconv.Itoa(at.rule) + "/" + strconv.Itoa(at.path),
		Match:    &resource.Match{Path: &resource.PathMatch{Kind: match.kind, Value: match.value}},
		Backends: r.backend(ingress, &path.Backend, func() string { return at.field() + ".backend" }),
	}}
}

// parseIngressPath reads a path. What is implementation specific is a prefix. A prefix means
// the same with and without a slash at its end.
func parseIngressPath(path *networkingv1.HTTPIngressPath) (ingressPath, error) {
	found := ingressPath{kind: resource.PathMatch_PREFIX, value: path.Path}
	switch value(path.PathType) {
	case networkingv1.PathTypeExact:
		found.kind = resource.PathMatch_EXACT
	case networkingv1.PathTypePrefix, networkingv1.PathTypeImplementationSpecific, "":
		if found.value == "" {
			found.value = "/"
		}
	default:
		return found, fmt.Errorf("there is no pathType %s", *path.PathType)
	}
	if err := validPath(found.value); err != nil {
		return found, err
	}
	if found.kind == resource.PathMatch_PREFIX {
		found.value = trimPrefix(found.value)
	}
	return found, nil
}

// addDefault reads spec.defaultBackend, which also takes what no host matches.
func (r *ingressRun) addDefault(ingress *networkingv1.Ingress, redirect bool) *ingressRule {
	if ingress.Spec.DefaultBackend == nil {
		return nil
	}
	fallback := &ingressRule{ingress: ingress, redirect: redirect, rule: &resource.Rule{
		Route:    fmt.Sprintf("ingress/%s/%s/default", ingress.Namespace, ingress.Name),
		Match:    &resource.Match{Path: &resource.PathMatch{Value: "/"}},
		Backends: r.backend(ingress, ingress.Spec.DefaultBackend, func() string { return "spec.defaultBackend" }),
	}}
	r.defaults = append(r.defaults, fallback)
	r.host("")
	return fallback
}

// backend gives the one backend of a path. One that cannot be reached answers 500.
func (r *ingressRun) backend(
	ingress *networkingv1.Ingress, backend *networkingv1.IngressBackend, field func() string,
) []*resource.WeightedBackend {
	invalid := []*resource.WeightedBackend{{Weight: 1}}
	if backend.Service == nil {
		if backend.Resource == nil {
			r.problem(ingressObject(ingress), field(), ReasonInvalid, "it names no Service")
			return invalid
		}
		r.problem(ingressObject(ingress), field()+".resource", ReasonUnsupported, "a backend is a Service")
		return invalid
	}
	of := key{ingress.Namespace, backend.Service.Name}
	name, refused := r.service(of, backend.Service.Port.Name, backend.Service.Port.Number)
	if refused != nil {
		r.problem(ingressObject(ingress), field()+".service", refused.reason, refused.message)
	}
	if name == "" {
		return invalid
	}
	return []*resource.WeightedBackend{{Backend: name, Weight: 1}}
}

// service adds the backend of a Service port and gives its name. One that a policy refuses has a
// name, too: proxies answer in its place.
func (r *ingressRun) service(of key, name string, number int32) (string, *refusal) {
	port, refused := r.servicePort(of, name, number, corev1.ProtocolTCP)
	if refused != nil {
		return "", refused
	}
	found, refused := r.compilation.backend(of, port, speech{protocol: resource.Backend_HTTP1})
	if refused != nil {
		return "", refused
	}
	r.builder.use(found)
	return found.name, found.refused()
}

// addClassDefault adds the default backend of the class.
func (r *ingressRun) addClassDefault() {
	object := Object{Kind: "IngressClass", Name: r.class.name}
	of := r.class.defaultBackend
	if of.name == "" {
		return
	}
	name, number := r.class.defaultBackendPort, int32(0)
	if parsed, err := strconv.ParseInt(name, 10, 32); err == nil {
		name, number = "", int32(parsed)
	}
	backend, refused := r.service(of, name, number)
	if refused != nil {
		r.problem(object, "parameters."+ParameterDefaultBackend, refused.reason, refused.message)
	}
	if backend == "" {
		return
	}
	r.host("")
	r.defaults = append(r.defaults, &ingressRule{rule: &resource.Rule{
		Route:    fmt.Sprintf("ingressclass/%s/default", r.class.name),
		Match:    &resource.Match{Path: &resource.PathMatch{Value: "/"}},
		Backends: []*resource.WeightedBackend{{Backend: backend, Weight: 1}},
	}})
}

// hostFallback is the backend for the paths of a host that no rule matches. A host takes the
// default backend of its own Ingresses or of the class, not that of strangers.
func (r *ingressRun) hostFallback(name hostname, host *ingressHost) *ingressRule {
	if host.fallback != nil {
		return host.fallback
	}
	for _, found := range r.defaults {
		if name == "" || found.ingress == nil {
			return found
		}
	}
	return nil
}

// ingressEntry is a rule of a host, and its path.
type ingressEntry struct {
	path ingressPath
	rule *ingressRule
}

// security is what there is of TLS for a host.
type security struct {
	// secured says that the host has TLS, or an Ingress wants it; certified that it has.
	secured, certified bool
}

// sorted gives the rules in order of precedence: the longest path first, exact before prefix.
// plain is for HTTP, where redirected says that it differs; only a secured host has redirects.
func (h *ingressHost) sorted(fallback *ingressRule, of security) (rules, plain []*resource.Rule, redirected bool) {
	entries := make([]ingressEntry, 0, len(h.rules)+1)
	for path, rule := range h.rules {
		entries = append(entries, ingressEntry{path, rule})
	}
	if len(entries) > 1 {
		slices.SortFunc(entries, func(a, b ingressEntry) int {
			return cmp.Or(
				cmp.Compare(len(b.path.value), len(a.path.value)),
				-cmp.Compare(a.path.kind, b.path.kind),
				strings.Compare(a.path.value, b.path.value))
		})
	}
	if _, all := h.rules[ingressPath{resource.PathMatch_PREFIX, "/"}]; !all && fallback != nil {
		entries = append(entries, ingressEntry{rule: fallback})
	}
	rules = make([]*resource.Rule, 0, len(entries))
	for _, found := range entries {
		rules = append(rules, found.rule.rule)
		redirected = redirected || found.rule.redirect && of.secured
	}
	if !redirected {
		return rules, rules, false
	}
	return rules, plainRules(entries, of.certified), true
}

// redirectRule answers what a rule matches with a redirect to HTTPS. 308 keeps the method.
func redirectRule(rule *resource.Rule) *resource.Rule {
	return &resource.Rule{
		Route:    rule.Route,
		Match:    rule.Match,
		Backends: rule.Backends,
		Filters: []*resource.Filter{{Kind: &resource.Filter_Redirect{Redirect: &resource.Redirect{
			Scheme: "https", Status: 308, InsecureOnly: true,
		}}}},
	}
}

// challenges is below what a CA of ACME looks for the answer to a challenge, over plain HTTP (RFC
// 8555, section 8.3). It follows redirects, but not to a host that has no certificate yet.
const challenges = "/.well-known/acme-challenge"

// plainRules are the rules at HTTP of a host with redirects. Without a certificate the host answers
// challenges.
func plainRules(entries []ingressEntry, certified bool) []*resource.Rule {
	plain := make([]*resource.Rule, 0, len(entries)+1)
	isAnswered := certified
	for _, found := range entries {
		rule, path := found.rule.rule, found.rule.rule.Match.Path
		takesAll := path.Kind == resource.PathMatch_PREFIX && isBelow(challenges, path.Value)
		switch {
		case !found.rule.redirect, !certified && isBelow(path.Value, challenges):
			plain = append(plain, rule)
		case takesAll && !isAnswered:
			plain = append(plain, &resource.Rule{
				Route: rule.Route, Backends: rule.Backends,
				Match: &resource.Match{Path: &resource.PathMatch{Kind: resource.PathMatch_PREFIX, Value: challenges}},
			}, redirectRule(rule))
		default:
			plain = append(plain, redirectRule(rule))
		}
		isAnswered = isAnswered || takesAll
	}
	return plain
}

// isBelow reports whether a path is a prefix, or begins with it, by elements.
func isBelow(path, prefix string) bool {
	return strings.HasPrefix(path+"/", strings.TrimSuffix(prefix, "/")+"/")
}
