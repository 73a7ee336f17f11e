// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/pathmatch"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
	"github.com/millrace-lb/millrace/gateway/route/parameters"
)

type ingressPath struct {
	kind  resource.PathMatch_Kind
	value string
}

func (r *setCompiler) addRules(ingress *networkingv1.Ingress) {
	if r.nginxSettings[ingress].isCanary() {
		return
	}
	redirect := r.redirection(ingress)
	fallback := r.addDefault(ingress, redirect)
	for i := range ingress.Spec.Rules {
		rule := &ingress.Spec.Rules[i]
		name, err := ownership.ParseHost(rule.Host)
		if err != nil {
			r.AddProblem(ingressObject(ingress), fmt.Sprintf("spec.rules[%d].host", i), model.ReasonInvalid, err.Error())
			continue
		}
		if !r.owners.Admits(name, ingress.Namespace) {
			r.AddProblem(ingressObject(ingress), fmt.Sprintf("spec.rules[%d].host", i), model.ReasonConflict, builder.HostOwned)
			continue
		}
		host := r.host(name)
		if r.owners.Owns(name, ingress.Namespace) {
			host.isOwned = true
			if host.fallback == nil {
				host.fallback = fallback
			}
		}
		if redirect == redirectSecured && !r.securityOf(name, ingress.Namespace).secured {
			r.AddProblem(ingressObject(ingress), "metadata.annotations["+model.AnnotationSSLRedirect+"]", model.ReasonNotFound,
				"there is no certificate for "+name.String()+", which is served without TLS")
		}
		if rule.HTTP == nil {
			continue
		}
		for j := range rule.HTTP.Paths {
			r.addPath(ingress, name, &rule.HTTP.Paths[j], ingressAt{i, j, redirect})
		}
	}
}

func (r *setCompiler) host(name ownership.Host) *ingressHost {
	if r.hosts[name] == nil {
		r.hosts[name] = &ingressHost{rules: make(map[ingressPath]*ingressRule, 1)}
	}
	return r.hosts[name]
}

type ingressAt struct {
	rule, path int
	redirect   redirection
}

func (a ingressAt) field() string {
	return fmt.Sprintf("spec.rules[%d].http.paths[%d]", a.rule, a.path)
}

// addPath adds the rule of a path. Of two equal paths, the older is kept. Namespaces that do not own the host
// can add only paths that no older object has.
func (r *setCompiler) addPath(
	ingress *networkingv1.Ingress, name ownership.Host, path *networkingv1.HTTPIngressPath, at ingressAt,
) {
	host, isForeign := r.hosts[name], !r.owners.Owns(name, ingress.Namespace)
	if isForeign && !r.canShareHost(ingress, path.Path, at) {
		return
	}
	key, match, err := r.parsePath(ingress, name, path)
	if err != nil {
		settings := r.nginxSettings[ingress]
		closes := settings != nil && isGuarded(ingress) && !isForeign
		r.AddProblem(ingressObject(ingress), at.field()+".path", model.ReasonInvalid, err.Error()+map[bool]string{true: "; requests that it could match get 500"}[closes])
		if !closes {
			return
		}
		key, match = r.closedPath(name, path)
	}
	if older := host.ruleOfOther(key, ingress.Namespace); older != nil {
		r.AddProblem(ingressObject(ingress), at.field()+".path", model.ReasonConflict, builder.PathOwned)
		return
	}
	if older := host.rules[key]; older != nil {
		r.AddProblem(ingressObject(ingress), at.field()+".path", model.ReasonConflict,
			fmt.Sprintf("Ingress %s/%s has the same path, %s", older.ingress.Namespace, older.ingress.Name, older.rule.Route))
		return
	}
	rule := &resource.Rule{
		Route: "ingress/" + ingress.Namespace + "/" + ingress.Name + "/" +
			strconv.Itoa(at.rule) + "/" + strconv.Itoa(at.path),
		Match:    &resource.Match{Path: match},
		Backends: r.backend(ingress, &path.Backend, r.nginxSettings[ingress].upstream(), func() string { return at.field() + ".backend" }),
	}
	r.applyAnnotations(rule, ingress, path.Path, &path.Backend)
	if isForeign && rule.SessionPersistence != nil {
		rule.SessionPersistence = nil
		r.annotation(ingress, "affinity", model.ReasonConflict, builder.HostOwned+", which decides on sessions")
	}
	r.setSessionPath(rule, ingress, name, key, path.Backend.Service)
	if err != nil {
		rule = builder.ClosedRule(rule)
	}
	host.rules[key] = &ingressRule{ingress: ingress, redirect: at.redirect, rule: rule, backend: &path.Backend}
}

// closeHosts adds rules that answer 500 for the hosts of closed namespaces, up to the reserve, so that no
// wildcard or default backend serves their requests.
func (r *setCompiler) closeHosts() {
	bytes, all := map[string]int64{}, ingressPath{resource.PathMatch_PREFIX, "/"}
	for _, ingress := range r.closed {
		for i := range ingress.Spec.Rules {
			name, err := ownership.ParseHost(ingress.Spec.Rules[i].Host)
			known := r.hosts[name]
			if err != nil || !r.owners.Owns(name, ingress.Namespace) || known != nil && known.rules[all] != nil {
				continue
			}
			bytes[ingress.Namespace] += builder.EntryBytes + int64(2*len(name)+len(ingress.Name)+len(ingress.Namespace))
			if bytes[ingress.Namespace] > r.Settings.NamespaceBytes/builder.ReserveParts {
				continue
			}
			host := r.host(name)
			host.isOwned = true
			host.rules[all] = &ingressRule{ingress: ingress, backend: &networkingv1.IngressBackend{}, rule: &resource.Rule{
				Route: "ingress/" + ingress.Namespace + "/" + ingress.Name + "/closed",
				Match: &resource.Match{Path: &resource.PathMatch{Value: "/"}},
			}}
		}
	}
}

// parseIngressPath parses a path. ImplementationSpecific is a prefix, and the trailing slash of a prefix is
// ignored.
func parseIngressPath(path *networkingv1.HTTPIngressPath) (ingressPath, error) {
	found := ingressPath{kind: resource.PathMatch_PREFIX, value: path.Path}
	switch ptr.Deref(path.PathType, "") {
	case networkingv1.PathTypeExact:
		found.kind = resource.PathMatch_EXACT
	case networkingv1.PathTypePrefix, networkingv1.PathTypeImplementationSpecific, "":
		if found.value == "" {
			found.value = "/"
		}
	default:
		return found, fmt.Errorf("unknown pathType %s", *path.PathType)
	}
	var err error
	if found.value, err = pathmatch.Canonical(found.value); err != nil {
		return found, err
	}
	if found.kind == resource.PathMatch_PREFIX {
		found.value = pathmatch.TrimPrefix(found.value)
	}
	return found, nil
}

// addDefault adds spec.defaultBackend. If the Ingress has no rules, it serves unknown hosts, unless an older
// object of another namespace has rules for all hosts.
func (r *setCompiler) addDefault(ingress *networkingv1.Ingress, redirect redirection) *ingressRule {
	if ingress.Spec.DefaultBackend == nil {
		return nil
	}
	rule := &resource.Rule{
		Route:    fmt.Sprintf("ingress/%s/%s/default", ingress.Namespace, ingress.Name),
		Match:    &resource.Match{Path: &resource.PathMatch{Value: "/"}},
		Backends: r.backend(ingress, ingress.Spec.DefaultBackend, r.nginxSettings[ingress].upstream(), func() string { return "spec.defaultBackend" }),
	}
	r.applyAnnotations(rule, ingress, "/", ingress.Spec.DefaultBackend)
	if rule.SessionPersistence != nil {
		// The default backend must not share a cookie with the rules of its hosts.
		rule.SessionPersistence = sessionOf(rule.SessionPersistence, "/", "default/"+ingress.Name)
	}
	fallback := &ingressRule{ingress: ingress, redirect: redirect, rule: rule}
	if len(ingress.Spec.Rules) > 0 {
		return fallback
	}
	if owner, known := r.owners.Owner(""); known && owner.Namespace != ingress.Namespace && owner.Age < r.ages[ingress] {
		r.AddProblem(ingressObject(ingress), "spec.defaultBackend", model.ReasonConflict, builder.HostOwned)
		return nil
	}
	if len(r.defaults) > 0 {
		r.AddProblem(ingressObject(ingress), "spec.defaultBackend", model.ReasonConflict, "an older Ingress has a default backend for all hosts")
		return nil
	}
	r.defaults = append(r.defaults, fallback)
	r.host("")
	return nil
}

func (r *setCompiler) backend(
	ingress *networkingv1.Ingress, backend *networkingv1.IngressBackend, spec builder.Upstream, field func() string,
) []*resource.WeightedBackend {
	invalid := []*resource.WeightedBackend{{Weight: 1}}
	if backend.Service == nil {
		if backend.Resource == nil {
			r.AddProblem(ingressObject(ingress), field(), model.ReasonInvalid, "no Service is set")
			return invalid
		}
		r.AddProblem(ingressObject(ingress), field()+".resource", model.ReasonUnsupported, "only Services are supported as backends")
		return invalid
	}
	of := types.NamespacedName{Namespace: ingress.Namespace, Name: backend.Service.Name}
	name, refused := r.service(of, backend.Service.Port.Name, backend.Service.Port.Number, spec)
	if refused != nil {
		r.AddProblem(ingressObject(ingress), field()+".service", refused.Reason, refused.Message)
	}
	if name == "" {
		return invalid
	}
	return []*resource.WeightedBackend{{Backend: name, Weight: 1}}
}

// service adds the backend of a Service port. If a policy refuses the backend, it is added nevertheless,
// because proxies then answer its requests.
func (r *setCompiler) service(of types.NamespacedName, name string, number int32, spec builder.Upstream) (string, *builder.Refusal) {
	port, refused := r.ServicePort(of, name, number, corev1.ProtocolTCP)
	if refused != nil {
		return "", refused
	}
	found, refused := r.Builder.Backend(of, port, spec)
	if refused != nil {
		return "", refused
	}
	r.proxy.Use(found)
	return found.Name, found.Refused()
}

func (r *setCompiler) addClassDefault() {
	object := model.Object{Kind: "IngressClass", Name: r.class.name}
	of := r.class.DefaultBackend
	if of.Name == "" {
		return
	}
	name, number := r.class.DefaultBackendPort, int32(0)
	if parsed, err := strconv.ParseInt(name, 10, 32); err == nil {
		name, number = "", int32(parsed)
	}
	backend, refused := r.service(of, name, number, builder.Upstream{Protocol: resource.Backend_HTTP1})
	if refused != nil {
		r.AddProblem(object, "parameters."+parameters.DefaultBackend, refused.Reason, refused.Message)
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

// hostFallback returns the default backend for a host: that of the host's own Ingresses, or of the class.
// Those of other Ingresses do not apply.
func (r *setCompiler) hostFallback(name ownership.Host, host *ingressHost) *ingressRule {
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

type ingressEntry struct {
	path ingressPath
	rule *ingressRule
}

type redirection int

const (
	noRedirect redirection = iota
	redirectSecured
	// redirectWanted redirects hosts for which an Ingress requests TLS (ingress-nginx: ssl-redirect).
	redirectWanted
	// redirectAll redirects all hosts (ingress-nginx: force-ssl-redirect).
	redirectAll
)

func (r redirection) at(of security) bool {
	switch r {
	case redirectSecured:
		return of.secured
	case redirectWanted:
		return of.wanted
	case redirectAll:
		return true
	}
	return false
}

// redirection returns the redirection of an Ingress. Annotation millrace.io/ssl-redirect takes precedence
// over those of ingress-nginx.
func (r *setCompiler) redirection(ingress *networkingv1.Ingress) redirection {
	settings := r.nginxSettings[ingress]
	if _, own := ingress.Annotations[model.AnnotationSSLRedirect]; own || settings == nil || r.class.SslRedirect {
		if r.ingressBool(ingress, model.AnnotationSSLRedirect, r.class.SslRedirect) {
			return redirectSecured
		}
		return noRedirect
	}
	switch {
	case settings.Redirect != nil:
		// Annotation permanent-redirect or temporal-redirect applies to plain HTTP, too.
		return noRedirect
	case settings.ForceSSLRedirect:
		return redirectAll
	case settings.SSLRedirect:
		return redirectWanted
	}
	return noRedirect
}

// sorted returns the rules by precedence: the longest path first, exact paths before prefixes. plain contains
// the rules for plain HTTP.
func (h *ingressHost) sorted(fallback *ingressRule, of func(*ingressRule) security) (rules, plain []*resource.Rule, redirected bool) {
	entries := make([]ingressEntry, 0, len(h.rules)+1)
	for path, rule := range h.rules {
		entries = append(entries, ingressEntry{path, rule})
	}
	if len(entries) > 1 {
		slices.SortFunc(entries, func(a, b ingressEntry) int { return comparePaths(a.path, b.path) })
	}
	if _, all := h.rules[ingressPath{resource.PathMatch_PREFIX, "/"}]; !all && fallback != nil {
		entries = append(entries, ingressEntry{path: ingressPath{value: "/"}, rule: fallback})
	}
	rules = make([]*resource.Rule, 0, len(entries)+1)
	if h.root != nil {
		rules = append(rules, h.root)
	}
	for _, found := range entries {
		rules = append(rules, found.rule.withCanary()...)
		redirected = redirected || found.rule.redirect.at(of(found.rule))
	}
	if !redirected {
		return rules, rules, false
	}
	if h.root != nil {
		plain = append(plain, h.root)
	}
	return rules, append(plain, plainRules(entries, of)...), true
}

// redirectRule returns a rule that redirects to HTTPS with status 308, which preserves the method.
func redirectRule(rule *resource.Rule) *resource.Rule {
	made := builder.WithMatch(rule, rule.Match)
	made.Filters = append(slices.Clip(rule.Filters), &resource.Filter{Kind: &resource.Filter_Redirect{Redirect: &resource.Redirect{
		Scheme: "https", Status: 308, InsecureOnly: true,
	}}})
	return made
}

// challenges is the path prefix of ACME HTTP challenges (RFC 8555, section 8.3). CAs follow redirects, but
// not to a host without a certificate.
const challenges = "/.well-known/acme-challenge"

func plainRules(entries []ingressEntry, securityOf func(*ingressRule) security) []*resource.Rule {
	plain := make([]*resource.Rule, 0, len(entries)+1)
	isAnswered := false
	for _, found := range entries {
		of := securityOf(found.rule)
		// The paths that an expression matches cannot be determined, so its text is compared as if it were a
		// path.
		path := found.path
		takesAll := path.kind == resource.PathMatch_PREFIX && isBelow(challenges, path.value)
		for _, rule := range found.rule.withCanary() {
			switch {
			case !found.rule.redirect.at(of), !of.certified && isBelow(path.value, challenges):
				plain = append(plain, rule)
			case takesAll && !isAnswered && !of.certified:
				plain = append(plain, challengeRule(rule), redirectRule(rule))
			default:
				plain = append(plain, redirectRule(rule))
			}
		}
		isAnswered = isAnswered || takesAll
	}
	return plain
}

func challengeRule(rule *resource.Rule) *resource.Rule {
	return builder.WithMatch(rule, &resource.Match{
		Path:    &resource.PathMatch{Kind: resource.PathMatch_PREFIX, Value: challenges},
		Headers: rule.Match.Headers,
	})
}

// isBelow reports whether a path is equal to or below a prefix, comparing path elements.
func isBelow(path, prefix string) bool {
	return strings.HasPrefix(path+"/", strings.TrimSuffix(prefix, "/")+"/")
}
