// SPDX-License-Identifier: Apache-2.0

package ownership_test

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	networkingv1 "k8s.io/api/networking/v1"
	"pgregory.net/rapid"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

// TestNonInterference checks that objects of namespace b, which are younger, do not affect the clients of
// hosts of namespace a. With Strict this applies to all requests, in a class that shares hosts to requests
// that no rule of b matches, and in both cases to all TLS handshakes.
func TestNonInterference(t *testing.T) {
	compared := 0
	// The default of rapid, 100 worlds, is too few.
	for range 40 {
		rapid.Check(t, func(t *rapid.T) { compared += interferes(t) })
	}
	if compared < 10_000 {
		t.Errorf("only %d requests were compared: the coverage is too low", compared)
	}
}

// interferes compares the results for a random world with and without namespace b, and returns the number of
// compared requests.
func interferes(t *rapid.T) (compared int) {
	w := drawWorld(t)
	settings := model.DefaultSettings()
	settings.AssumeCertificates = !w.certificates
	before := route.Compile(w.objects("a"), settings)
	after := route.Compile(w.objects("a", "b"), settings)
	for _, proxy := range before.Proxies {
		at := slices.IndexFunc(after.Proxies, func(p *model.Proxy) bool { return p.Owner == proxy.Owner })
		if at < 0 {
			t.Fatalf("the proxies of %v were removed", proxy.Owner)
		}
		compared += w.compare(t, newServed(t, proxy), newServed(t, after.Proxies[at]), proxy.Owner)
	}
	return compared
}

var (
	requestedHosts = []string{"a.x", "b.x", "c.x", "a.y", "www.a.y", "b.y", "c.y", "z"}
	requestedPaths = []string{"/", "/p", "/p/q", "/P/q", "/pxq", "/r", "/.well-known/acme-challenge/t", "/oauth2/auth"}
)

type served struct {
	*plan.Plan
	resources map[string]*resource.Resource
	ports     map[int32]uint16
}

func newServed(t *rapid.T, proxy *model.Proxy) *served {
	s := &served{resources: map[string]*resource.Resource{}, ports: map[int32]uint16{}}
	var endpoints []*resource.Resource
	for _, backend := range proxy.Backends {
		endpoints = append(endpoints, &resource.Resource{Name: model.EndpointsName(backend), Kind: &resource.Resource_Endpoints{
			Endpoints: &resource.Endpoints{Endpoints: []*resource.Endpoint{{Address: "198.51.100.1", Port: 80}}},
		}})
	}
	all := model.Merge(proxy.Resources, endpoints)
	for _, r := range all {
		s.resources[r.GetName()] = r
	}
	for _, port := range proxy.Ports {
		s.ports[port.VIP] = uint16(port.Target)
	}
	var err error
	if s.Plan, err = plan.New(all); err != nil {
		t.Fatalf("the proxy rejects the configuration: %v", err)
	}
	return s
}

// handshake returns the backend and group of passthrough, or the certificates. Both are empty if the
// handshake is rejected.
func (s *served) handshake(name string) (result, group string) {
	decision := s.DecideTLS(s.ports[443], name)
	if decision.Rule != nil {
		return prototext.Format(decision.Rule), decision.Group
	}
	return strings.Join(s.resources[decision.Listener].GetListener().GetCertificates(), " "), ""
}

func (s *served) answer(host, path string, tls bool) (plan.Decision, bool) {
	scheme, port := "http", s.ports[80]
	if tls {
		scheme, port = "https", s.ports[443]
		if listener := s.resources[s.DecideTLS(port, host).Listener].GetListener(); len(listener.GetCertificates()) == 0 {
			return plan.Decision{}, false
		}
	}
	return s.Decide(port, plan.Request{Method: "GET", URL: &url.URL{Scheme: scheme, Host: host, Path: path}}), true
}

func (w *world) compare(t *rapid.T, before, after *served, owner model.Object) (compared int) {
	kind := owner.Kind
	isShared := kind == "Gateway" || w.parameters.Data["hostOwnership"] == "InterNamespaceAllowed" ||
		w.parameters.Data["hostOwnership"] == "" && w.parameters.Data["annotations"] == "ingress-nginx"
	for _, host := range requestedHosts {
		if kind == "IngressClass" && host == "z" && !w.takesAll() {
			before, _ := before.answer(host, "/", false)
			if after, _ := after.answer(host, "/", false); !proto.Equal(before.Rule, after.Rule) {
				t.Fatalf("%s: rule of an unknown host changed from %v to %v", kind, before.Rule, after.Rule)
			}
		}
		if kind != "Gateway" && !w.owns(host, owner) {
			continue
		}
		mayDiffer := isShared && kind != "Gateway" && w.isBelowWildcard(host, owner)
		was, group := before.handshake(host)
		is, groupNow := after.handshake(host)
		if was != is && !mayDiffer && (kind != "Gateway" || group == groupNow && w.claims(host, true)) {
			t.Fatalf("%s: TLS of %s changed from %q to %q", kind, host, was, is)
		}
		for _, path := range requestedPaths {
			for _, tls := range []bool{false, true} {
				if kind == "Gateway" && !w.claims(host, tls) {
					continue
				}
				was, has := before.answer(host, path, tls)
				is, hasStill := after.answer(host, path, tls)
				if mayDiffer && has != hasStill || !has && !hasStill {
					continue
				}
				compared++
				if kind == "Gateway" && is.Listener != was.Listener {
					t.Fatalf("%s, TLS %v: listener changed from %s to %s", host, tls, was.Listener, is.Listener)
				}
				if kind != "Gateway" && w.isTaken(host, is.Rule) && is.Rule.GetSessionPersistence() != nil {
					t.Fatalf("a rule of another namespace for %s has session persistence", host)
				}
				if isShared && w.isTaken(host, is.Rule) || kind == "Gateway" && (is.Group != was.Group || strings.Contains(is.Rule.GetRoute(), "/b/")) {
					continue
				}
				if has != hasStill || was.Status != is.Status || was.Location != is.Location || !proto.Equal(was.Rule, is.Rule) {
					t.Fatalf("%s: %s %s, TLS %v: response changed from %d %s %v to %d %s %v", kind, host, path, tls,
						was.Status, was.Location, was.Rule, is.Status, is.Location, is.Rule)
				}
			}
		}
	}
	return compared
}

func (w *world) takesAll() bool {
	return slices.ContainsFunc(w.of["b"].Ingresses, func(ingress *networkingv1.Ingress) bool {
		return len(ingress.Spec.Rules) == 0 || slices.ContainsFunc(ingress.Spec.Rules, func(rule networkingv1.IngressRule) bool { return rule.Host == "" })
	})
}

// claims reports whether a route of namespace a has a host at an HTTP or TLS listener of its Gateway.
func (w *world) claims(host string, tls bool) bool {
	matches := func(name gatewayv1.Hostname) bool {
		_, both := ownership.Intersect(ownership.Host(host), ownership.Host(name))
		return both
	}
	of, protocol := w.of["a"], gatewayv1.HTTPProtocolType
	if tls {
		protocol = ""
		for _, listener := range of.Gateways[0].Spec.Listeners[1:] {
			protocol = listener.Protocol
		}
	}
	switch protocol {
	case "":
		return false
	case gatewayv1.TLSProtocolType:
		return slices.ContainsFunc(of.TLSRoutes, func(r *gatewayv1.TLSRoute) bool {
			return r.Spec.ParentRefs[0].Kind == nil && slices.ContainsFunc(r.Spec.Hostnames, matches)
		})
	}
	return slices.ContainsFunc(of.HTTPRoutes, func(r *gatewayv1.HTTPRoute) bool { return slices.ContainsFunc(r.Spec.Hostnames, matches) }) ||
		slices.ContainsFunc(of.GRPCRoutes, func(r *gatewayv1.GRPCRoute) bool { return slices.ContainsFunc(r.Spec.Hostnames, matches) })
}

func (w *world) isTaken(host string, rule *resource.Rule) bool {
	parts := strings.Split(rule.GetRoute(), "/")
	if len(parts) != 5 || parts[1] != "b" {
		return false
	}
	_, parent, _ := strings.Cut(host, ".")
	number, err := strconv.Atoi(parts[3])
	return err == nil && slices.ContainsFunc(w.of["b"].Ingresses, func(ingress *networkingv1.Ingress) bool {
		return ingress.Name == parts[2] && (ingress.Spec.Rules[number].Host == host || ingress.Spec.Rules[number].Host == "*."+parent)
	})
}

func (w *world) owns(host string, owner model.Object) bool {
	_, parent, _ := strings.Cut(host, ".")
	return slices.ContainsFunc(w.of["a"].Ingresses, func(ingress *networkingv1.Ingress) bool {
		return isServedBy(ingress, owner) && slices.ContainsFunc(w.namesOf(ingress), func(name string) bool { return name == host || name == "*."+parent })
	})
}

func isServedBy(ingress *networkingv1.Ingress, owner model.Object) bool {
	if ingress.Annotations[model.AnnotationDedicatedVIP] == "true" {
		return owner.Kind == "Ingress" && owner.Name == ingress.Name && owner.Namespace == ingress.Namespace
	}
	return owner.Kind == "IngressClass"
}

func (w *world) namesOf(ingress *networkingv1.Ingress) (names []string) {
	carries := w.parameters.Data["annotations"] == "ingress-nginx"
	if carries && ingress.Annotations[nginx.Prefix+"canary"] != "" {
		return nil
	}
	for _, rule := range ingress.Spec.Rules {
		if rule.Host != "" {
			names = append(names, rule.Host)
		}
		if carries && rule.Host == "a.y" && ingress.Annotations[nginx.Prefix+"from-to-www-redirect"] == "true" {
			names = append(names, "www.a.y")
		}
	}
	if aliases := ingress.Annotations[nginx.Prefix+"server-alias"]; carries && len(ingress.Spec.Rules) > 0 && aliases != "" {
		names = append(names, strings.Split(aliases, ",")...)
	}
	return names
}

// isBelowWildcard reports whether a host is a name of namespace b below a wildcard of a. Shared hosts have
// the certificate of b then.
func (w *world) isBelowWildcard(host string, owner model.Object) bool {
	for _, ingress := range w.of["a"].Ingresses {
		if isServedBy(ingress, owner) && slices.Contains(w.namesOf(ingress), host) {
			return false
		}
	}
	return slices.ContainsFunc(w.of["b"].Ingresses, func(ingress *networkingv1.Ingress) bool {
		return slices.ContainsFunc(ingress.Spec.Rules, func(rule networkingv1.IngressRule) bool { return rule.Host == host })
	})
}
