// SPDX-License-Identifier: Apache-2.0

// Package ingress compiles Ingresses and annotations of ingress-nginx into proxy configurations. It is pure.
package ingress

import (
	"cmp"
	"regexp"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/certificate"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

// Ports of all Ingresses.
const (
	portHTTP  int32 = 80
	portHTTPS int32 = 443
)

const listenerHTTP = "listener/http"

var plainListener = []string{listenerHTTP}

type setCompiler struct {
	*compiler
	*ingressSet
	proxy *builder.Proxy
	hosts map[ownership.Host]*ingressHost
	ingressCertificates
	defaults []*ingressRule
	// expressions contains the hosts whose paths are regular expressions.
	expressions map[ownership.Host]bool
	// matches counts the comparisons of rules with paths of authorization requests.
	matches int
	aliasOf map[ownership.Host]ownership.Host
	// aliases contains the size of repeated rules in bytes, by namespace. The key "" has the total.
	aliases map[string]int64
	// sessions maps the name and path of a session cookie at a host to the Service that uses the cookie.
	sessions map[cookiePath]string
	// refused contains the hosts of an Ingress without a certificate that can be served.
	refused map[*networkingv1.Ingress][]refusedTLS
}

type refusedTLS struct {
	host   ownership.Host
	reason string
}

type ingressHost struct {
	rules   map[ingressPath]*ingressRule
	isOwned bool
	// isInherited is true if the owner's rules are those of the wildcard above.
	isInherited bool
	// fallback is the default backend of the owner's oldest Ingress that has both this host and a default
	// backend.
	fallback *ingressRule
	root     *resource.Rule
	// bytes is the encoded size of the rules in bytes; 0 if it is not computed yet.
	bytes int64
}

type ingressRule struct {
	rule       *resource.Rule
	ingress    *networkingv1.Ingress
	redirect   redirection
	backend    *networkingv1.IngressBackend
	expression *regexp.Regexp
	canary     *canary
}

type compiler struct {
	*builder.Builder
	// nginxSettings contains the ingress-nginx annotations of Ingresses whose class enables them.
	nginxSettings map[*networkingv1.Ingress]*nginxSettings
	// widest is the maximum size in bytes that annotations of an Ingress add to a path, by namespace.
	widest map[string]int64
}

// Compile adds the proxies and statuses of Ingresses to the result.
func Compile(shared *builder.Builder, objects *model.Objects) {
	c := &compiler{
		Builder: shared, nginxSettings: map[*networkingv1.Ingress]*nginxSettings{}, widest: map[string]int64{},
	}
	for _, set := range c.ingressSets(objects) {
		c.claimHosts(set)
		c.admit(set)
		// Most Ingresses have one or two hosts.
		room := 2 * len(set.members)
		run := &setCompiler{
			compiler:    c,
			ingressSet:  set,
			proxy:       c.NewProxy(set.owner),
			hosts:       make(map[ownership.Host]*ingressHost, room),
			refused:     map[*networkingv1.Ingress][]refusedTLS{},
			expressions: map[ownership.Host]bool{},
			sessions:    map[cookiePath]string{},
			aliases:     map[string]int64{},
			aliasOf:     map[ownership.Host]ownership.Host{},
			ingressCertificates: ingressCertificates{
				provided:       make(map[namespacedHost]*ingressTLS, room),
				wanted:         make(map[namespacedHost]bool, room),
				firstNamespace: map[ownership.Host]string{},
				passthroughs:   map[ownership.Host]*ingressTLS{},
			},
		}
		c.Result.Proxies = append(c.Result.Proxies, run.compile())
	}
	slices.SortFunc(c.Result.Ingresses, func(a, b model.IngressStatus) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (r *setCompiler) compile() *model.Proxy {
	r.addDefaultCertificate()
	for _, ingress := range r.members {
		if settings := r.nginxSettings[ingress]; settings == nil || !settings.hasNoRoom {
			r.addTLS(ingress)
		}
	}
	r.findExpressions()
	for _, ingress := range r.members {
		r.prepareFilters(ingress)
		r.addRules(ingress)
	}
	r.redirectSlashes()
	r.closeHosts()
	for _, ingress := range r.members {
		if r.nginxSettings[ingress].isCanary() {
			r.addCanary(ingress)
		}
	}
	r.addNames()
	r.inheritWildcards()
	for _, ingress := range r.members {
		r.resolveAuthorization(ingress)
	}
	r.addClassDefault()
	r.findListenerHosts()

	ports := map[int32]bool{portHTTP: true}
	if len(r.listenerHosts) > 0 {
		ports[portHTTPS] = true
	}
	r.proxy.Result.Ports = builder.TargetPorts(ports, r.Settings.ReservedPorts)
	r.proxy.Result.Parameters = r.class.Parameters
	r.listeners()
	r.groups()
	r.statuses()
	return r.proxy.Finish()
}

// listeners adds one listener for HTTP, and one for each host with its own TLS configuration.
func (r *setCompiler) listeners() {
	targets := map[int32]uint32{}
	for _, port := range r.proxy.Result.Ports {
		targets[port.VIP] = uint32(port.Target)
	}
	r.proxy.Listener(listenerHTTP, &resource.Listener{
		Port: uint32(portHTTP), TargetPort: targets[portHTTP], Protocol: resource.Listener_HTTP,
		TrustedHops: r.class.TrustedHops,
	})
	for host, found := range r.listenerHosts {
		if found.passthrough != nil {
			r.proxy.Listener(listenerHTTPS(host), &resource.Listener{
				Port: uint32(portHTTPS), TargetPort: targets[portHTTPS], Protocol: resource.Listener_TLS_PASSTHROUGH,
				Hostname: host.Resource(resource.Hostname_ONE_LABEL), TrustedHops: r.class.TrustedHops,
			})
			r.proxy.Group("group-tls/"+string(host), &resource.RouteGroup{
				Listeners: []string{listenerHTTPS(host)}, Hostname: host.Resource(resource.Hostname_ONE_LABEL),
				Rules: []*resource.Rule{found.passthrough},
			})
			continue
		}
		// For a host without TLS, the listener has no certificates and rejects handshakes.
		listener := &resource.Listener{
			Port: uint32(portHTTPS), TargetPort: targets[portHTTPS], Protocol: resource.Listener_HTTPS,
			Hostname: host.Resource(resource.Hostname_ONE_LABEL), TrustedHops: r.class.TrustedHops,
			// "the SNI host is used for termination and value of the "Host" header is used for routing"
			// (IngressTLS.secretName). No Ingress requires client certificates, so any server name is
			// safe.
			AnyServerName: true, TlsPolicy: r.class.TLSPolicy,
		}
		for _, certificate := range certificate.EllipticFirst(found.certificates) {
			listener.Certificates = append(listener.Certificates, r.proxy.Certificate(certificate))
		}
		r.proxy.Listener(listenerHTTPS(host), listener)
	}
}

func (r *setCompiler) groups() {
	listeners := r.httpsListeners()
	for host, found := range r.hosts {
		rules, plain, redirected := found.sorted(r.hostFallback(host, found), r.securities(host))
		wire := host.Resource(resource.Hostname_ONE_LABEL)
		name := "group/" + string(host)
		if !redirected {
			all := slices.Concat(plainListener, listeners[host])
			r.proxy.Group(name, &resource.RouteGroup{Listeners: all, Hostname: wire, Rules: rules})
			continue
		}
		r.proxy.Group("group-http/"+string(host),
			&resource.RouteGroup{Listeners: []string{listenerHTTP}, Hostname: wire, Rules: plain})
		if len(listeners[host]) > 0 {
			r.proxy.Group(name, &resource.RouteGroup{Listeners: listeners[host], Hostname: wire, Rules: rules})
		}
	}
}

// httpsListeners returns the listeners of each host. Proxies select the listener and the route group
// independently, each by the most specific name. A host therefore needs its most specific listener, and all
// listeners for which it is the most specific host.
func (r *setCompiler) httpsListeners() map[ownership.Host][]string {
	found := make(map[ownership.Host][]string, len(r.hosts))
	join := func(host, listener ownership.Host) {
		if len(r.listenerHosts[listener].certificates) > 0 {
			found[host] = append(found[host], listenerHTTPS(listener))
		}
	}
	for host := range r.hosts {
		if listener, ok := bestHost(r.listenerHosts, host); ok {
			join(host, listener)
		}
	}
	for listener := range r.listenerHosts {
		// Equal names were joined by the loop above.
		if host, ok := bestHost(r.hosts, listener); ok && host != listener {
			join(host, listener)
		}
	}
	for host, names := range found {
		if len(names) > 1 {
			slices.Sort(names)
			found[host] = slices.Compact(names)
		}
	}
	return found
}

// bestHost returns the most specific key that matches a host according to Ingress.
func bestHost[T any](hosts map[ownership.Host]T, host ownership.Host) (ownership.Host, bool) {
	if _, ok := hosts[host]; ok {
		return host, true
	}
	if !host.IsWildcard() {
		if parent := host.Parent(); parent != "" {
			if _, ok := hosts[parent]; ok {
				return parent, true
			}
		}
	}
	_, ok := hosts[""]
	return "", ok
}

func (r *setCompiler) statuses() {
	for _, ingress := range r.members {
		status := model.IngressStatus{
			Namespace: ingress.Namespace, Name: ingress.Name, Owner: r.owner, Ports: []model.IngressPort{{Number: portHTTP}},
		}
		if reason := r.httpsError(ingress); reason != "" || r.servesHTTPS(ingress) {
			status.Ports = append(status.Ports, model.IngressPort{Number: portHTTPS, Error: reason})
		}
		r.Result.Ingresses = append(r.Result.Ingresses, status)
	}
}

// httpsError returns the reason why a TLS host of an Ingress has no certificate, not even that of another
// Ingress, or "".
func (r *setCompiler) httpsError(ingress *networkingv1.Ingress) string {
	for _, refused := range r.refused[ingress] {
		if len(r.tlsOf(refused.host).certificates) == 0 {
			return refused.reason
		}
	}
	return ""
}

func (r *setCompiler) servesHTTPS(ingress *networkingv1.Ingress) bool {
	for _, rule := range ingress.Spec.Rules {
		host, err := ownership.ParseHost(rule.Host)
		if err != nil || !r.owners.Admits(host, ingress.Namespace) {
			continue
		}
		if found := r.tlsOf(host); len(found.certificates) > 0 || found.passthrough != nil {
			return true
		}
	}
	return len(r.tlsOf("").certificates) > 0
}

func listenerHTTPS(host ownership.Host) string { return "listener/https/" + string(host) }
