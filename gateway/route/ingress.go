// SPDX-License-Identifier: Apache-2.0

package route

import (
	"regexp"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// The ports of every Ingress.
const (
	portHTTP  int32 = 80
	portHTTPS int32 = 443
)

const listenerHTTP = "listener/http"

var plainListener = []string{listenerHTTP}

// ingressRun compiles the Ingresses of one VIP.
type ingressRun struct {
	*compilation
	*fleet
	builder *builder
	hosts   map[hostname]*ingressHost
	tls     map[hostname]*ingressTLS
	// defaults are the backends for what no rule matches, of all hosts.
	defaults []*ingressRule
	// claimed are the hosts that the class's own certificate is for, and the oldest Ingress of each.
	claimed map[hostname]*networkingv1.Ingress
	// wanted are the hosts of which an Ingress wants TLS, also where it cannot be had.
	wanted map[hostname]bool
	// expressions are the hosts whose paths are regular expressions; tunnels those whose TLS
	// connections are passed on, and where to.
	expressions map[hostname]bool
	tunnels     map[hostname]*resource.Rule
	// matches are how many rules were held against the paths of questions.
	matches int
	// aliases are the bytes of rules that are repeated, by namespace; of all by "".
	aliases map[string]int64
	// refused are the hosts for which an Ingress brings no certificate that can be served.
	refused map[*networkingv1.Ingress][]refusedTLS
}

// refusedTLS is a host without the certificate that an Ingress wants for it.
type refusedTLS struct {
	host   hostname
	reason string
}

// ingressHost is what all Ingresses say about one host.
type ingressHost struct {
	rules map[ingressPath]*ingressRule
	// fallback is the default backend of the oldest Ingress with this host that has one.
	fallback *ingressRule
	// root redirects "/", or is nil.
	root *resource.Rule
	// bytes is how long its rules are on the wire, once that was asked.
	bytes int64
}

// ingressRule is one path of one Ingress.
type ingressRule struct {
	rule     *resource.Rule
	ingress  *networkingv1.Ingress
	redirect redirection
	// backend is what it is written with.
	backend *networkingv1.IngressBackend
	// expression is that of its path, once it was needed.
	expression *regexp.Regexp
	// canary shares its requests, or is nil.
	canary *canary
}

func (c *compilation) ingresses(objects *Objects) {
	for _, fleet := range c.fleets(objects) {
		c.admit(fleet)
		// Most Ingresses have a host or two.
		room := 2 * len(fleet.members)
		run := &ingressRun{
			compilation: c,
			fleet:       fleet,
			builder:     c.newBuilder(fleet.owner),
			hosts:       make(map[hostname]*ingressHost, room),
			tls:         make(map[hostname]*ingressTLS, room),
			wanted:      make(map[hostname]bool, room),
			refused:     map[*networkingv1.Ingress][]refusedTLS{},
			claimed:     map[hostname]*networkingv1.Ingress{},
			expressions: map[hostname]bool{},
			tunnels:     map[hostname]*resource.Rule{},
			aliases:     map[string]int64{},
		}
		c.result.Proxies = append(c.result.Proxies, run.compile())
	}
}

// compile gives the proxy of a fleet.
func (r *ingressRun) compile() *Proxy {
	r.addDefaultCertificate()
	for _, ingress := range r.members {
		r.addTLS(ingress)
		r.claimRules(ingress)
	}
	r.findExpressions()
	for _, ingress := range r.members {
		r.prepare(ingress)
		r.addRules(ingress)
	}
	for _, ingress := range r.members {
		r.findAsked(ingress)
	}
	for _, ingress := range r.members {
		if r.asked[ingress].isCanary() {
			r.addCanary(ingress)
		}
	}
	r.addNames()
	r.addClassDefault()

	ports := map[int32]bool{portHTTP: true}
	if len(r.tls)+len(r.tunnels) > 0 {
		ports[portHTTPS] = true
	}
	r.builder.proxy.Ports = targetPorts(ports, r.settings.ReservedPorts)
	r.builder.proxy.Parameters = r.class.Parameters
	r.listeners()
	r.groups()
	r.statuses()
	return r.builder.finish()
}

// listeners makes one listener for HTTP, and one for each host with a certificate.
func (r *ingressRun) listeners() {
	targets := map[int32]uint32{}
	for _, port := range r.builder.proxy.Ports {
		targets[port.VIP] = uint32(port.Target)
	}
	r.builder.listener(listenerHTTP, &resource.Listener{
		Port: uint32(portHTTP), TargetPort: targets[portHTTP], Protocol: resource.Listener_HTTP,
		TrustedHops: r.class.TrustedHops,
	})
	for host, rule := range r.tunnels {
		r.builder.listener(listenerHTTPS(host), &resource.Listener{
			Port: uint32(portHTTPS), TargetPort: targets[portHTTPS], Protocol: resource.Listener_TLS_PASSTHROUGH,
			Hostname: host.resource(resource.Hostname_ONE_LABEL), TrustedHops: r.class.TrustedHops,
		})
		r.builder.group("group-tls/"+string(host), &resource.RouteGroup{
			Listeners: []string{listenerHTTPS(host)}, Hostname: host.resource(resource.Hostname_ONE_LABEL), Rules: []*resource.Rule{rule},
		})
	}
	for host, found := range r.tls {
		if r.tunnels[host] != nil {
			continue
		}
		listener := &resource.Listener{
			Port: uint32(portHTTPS), TargetPort: targets[portHTTPS], Protocol: resource.Listener_HTTPS,
			Hostname: host.resource(resource.Hostname_ONE_LABEL), TrustedHops: r.class.TrustedHops,
			// "the SNI host is used for termination and value of the "Host" header is used for
			// routing" (IngressTLS.secretName). No Ingress asks clients for a certificate.
			AnyServerName: true,
		}
		for _, certificate := range found.sorted() {
			listener.Certificates = append(listener.Certificates, r.builder.certificate(certificate))
		}
		r.builder.listener(listenerHTTPS(host), listener)
	}
}

// groups makes the route groups of each host.
func (r *ingressRun) groups() {
	listeners := r.httpsListeners()
	for host, found := range r.hosts {
		_, certified := bestHost(r.tls, host)
		_, wanted := bestHost(r.wanted, host)
		rules, plain, redirected := found.sorted(r.hostFallback(host, found), security{r.secured(host), certified, wanted})
		wire := host.resource(resource.Hostname_ONE_LABEL)
		name := "group/" + string(host)
		if !redirected {
			all := slices.Concat(plainListener, listeners[host])
			r.builder.group(name, &resource.RouteGroup{Listeners: all, Hostname: wire, Rules: rules})
			continue
		}
		r.builder.group("group-http/"+string(host),
			&resource.RouteGroup{Listeners: []string{listenerHTTP}, Hostname: wire, Rules: plain})
		if len(listeners[host]) > 0 {
			r.builder.group(name, &resource.RouteGroup{Listeners: listeners[host], Hostname: wire, Rules: rules})
		}
	}
}

// httpsListeners finds the listeners at which each host is served. A request finds its
// listener and its rules apart, each by the most specific name; so a host belongs to the
// listener that fits it best, and also to those that it fits best.
func (r *ingressRun) httpsListeners() map[hostname][]string {
	found := make(map[hostname][]string, len(r.hosts))
	join := func(host, listener hostname) {
		found[host] = append(found[host], listenerHTTPS(listener))
	}
	for host := range r.hosts {
		if listener, ok := bestHost(r.tls, host); ok && r.tunnels[listener] == nil {
			join(host, listener)
		}
	}
	for listener := range r.tls {
		// The same name is joined above.
		if host, ok := bestHost(r.hosts, listener); ok && host != listener && r.tunnels[listener] == nil {
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

// bestHost is the most specific key that matches a host, as Ingress matches.
func bestHost[T any](hosts map[hostname]T, host hostname) (hostname, bool) {
	if _, ok := hosts[host]; ok {
		return host, true
	}
	if !host.wildcard() {
		if parent := host.parent(); parent != "" {
			if _, ok := hosts[parent]; ok {
				return parent, true
			}
		}
	}
	_, ok := hosts[""]
	return "", ok
}

// statuses says where each Ingress is served.
func (r *ingressRun) statuses() {
	for _, ingress := range r.members {
		status := IngressStatus{
			Namespace: ingress.Namespace, Name: ingress.Name, Owner: r.owner, Ports: []IngressPort{{Number: portHTTP}},
		}
		if reason := r.lacksHTTPS(ingress); reason != "" || r.servesHTTPS(ingress) {
			status.Ports = append(status.Ports, IngressPort{Number: portHTTPS, Error: reason})
		}
		r.result.Ingresses = append(r.result.Ingresses, status)
	}
}

// lacksHTTPS is why a host of which an Ingress wants TLS has no certificate, not even one of
// another Ingress; empty where each has one.
func (r *ingressRun) lacksHTTPS(ingress *networkingv1.Ingress) string {
	for _, refused := range r.refused[ingress] {
		if _, ok := bestHost(r.tls, refused.host); !ok {
			return refused.reason
		}
	}
	return ""
}

// servesHTTPS reports whether a host of an Ingress has a certificate.
func (r *ingressRun) servesHTTPS(ingress *networkingv1.Ingress) bool {
	if _, ok := r.tls[""]; ok {
		return true
	}
	for _, rule := range ingress.Spec.Rules {
		host, err := parseHostname(rule.Host)
		if err != nil {
			continue
		}
		if _, ok := bestHost(r.tls, host); ok || r.tunnels[host] != nil {
			return true
		}
	}
	return false
}

func listenerHTTPS(host hostname) string { return "listener/https/" + string(host) }
