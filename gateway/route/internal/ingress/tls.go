// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/certificate"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
	"github.com/millrace-lb/millrace/gateway/route/parameters"
)

// ingressTLS is the TLS configuration of a host: passthrough, certificates, or neither for a host without
// TLS.
type ingressTLS struct {
	certificates []*certificate.Certificate
	passthrough  *resource.Rule
	// owner is the Ingress with the certificates; nil for the class.
	owner *networkingv1.Ingress
}

type namespacedHost struct {
	namespace string
	host      ownership.Host
}

type ingressCertificates struct {
	// wanted contains the hosts with a request for TLS, whether or not they have a certificate.
	provided map[namespacedHost]*ingressTLS
	wanted   map[namespacedHost]bool
	// firstNamespace is the namespace whose certificates apply to a host without an owner.
	firstNamespace map[ownership.Host]string
	classDefault   *ingressTLS
	passthroughs   map[ownership.Host]*ingressTLS
	listenerHosts  map[ownership.Host]*ingressTLS
}

func (r *setCompiler) addDefaultCertificate() {
	at := r.class.DefaultCertificate
	if at.Name == "" {
		return
	}
	found, refused := r.CertificateOf(at)
	if refused != nil {
		r.AddProblem(model.Object{Kind: "IngressClass", Name: r.class.name},
			"parameters."+parameters.DefaultCertificate, refused.Reason, refused.Message)
		return
	}
	if found.Flaw != "" {
		r.AddProblem(model.Object{Kind: "IngressClass", Name: r.class.name}, "parameters."+parameters.DefaultCertificate,
			model.ReasonInvalidCertificate, fmt.Sprintf("Secret %s/%s: %s", at.Namespace, at.Name, found.Flaw))
	}
	r.classDefault = &ingressTLS{certificates: []*certificate.Certificate{found}}
}

// certificateNamespace returns the namespace whose certificates take precedence for a host.
func (r *setCompiler) certificateNamespace(host ownership.Host) string {
	if namespace, known := r.owners.Certifier(host); known {
		return namespace
	}
	if host == "" && r.catchAll != "" {
		return r.catchAll
	}
	return r.firstNamespace[host]
}

// ownTLS returns the TLS configuration of a namespace for a host or its wildcard, or nil.
func (r *setCompiler) ownTLS(namespace string, host ownership.Host) *ingressTLS {
	if found := r.provided[namespacedHost{namespace, host}]; found != nil || host == "" || host.IsWildcard() {
		return found
	}
	return r.provided[namespacedHost{namespace, host.Parent()}]
}

var noTLS = &ingressTLS{}

// tlsOf returns the TLS configuration of a host, which its owner controls. Another namespace can add a
// certificate for a name below the owner's wildcard, unless the owner passes the connections of the name
// through.
func (r *setCompiler) tlsOf(host ownership.Host) *ingressTLS {
	return r.tlsBy(host, r.certificateNamespace(host))
}

func (r *setCompiler) tlsBy(host ownership.Host, by string) *ingressTLS {
	if found := r.passthroughs[host]; found != nil {
		return found
	}
	owner, owned := r.owners.Owner(host)
	if !owned {
		owner.Namespace = by
	}
	own := r.provided[namespacedHost{by, host}]
	if own != nil && by == owner.Namespace {
		return own
	}
	if host != "" && !host.IsWildcard() && r.owners.Owns(host.Parent(), owner.Namespace) {
		if found := r.passthroughs[host.Parent()]; found != nil {
			return found
		}
	}
	if own != nil {
		return own
	}
	for _, namespace := range []string{by, owner.Namespace} {
		if found := r.ownTLS(namespace, host); found != nil {
			return found
		}
		if found := r.provided[namespacedHost{namespace, ""}]; found != nil {
			return found
		}
	}
	if r.classDefault != nil {
		return r.classDefault
	}
	return noTLS
}

// findListenerHosts determines the hosts whose TLS configuration differs from that of the next wider name. A
// host without TLS has a listener that rejects handshakes.
func (r *setCompiler) findListenerHosts() {
	r.listenerHosts = make(map[ownership.Host]*ingressTLS, len(r.provided)+len(r.passthroughs))
	wildcards, exact := []ownership.Host{""}, make([]ownership.Host, 0, len(r.hosts)+len(r.provided))
	add := func(host ownership.Host) {
		if host.IsWildcard() {
			wildcards = append(wildcards, host)
		} else if host != "" {
			exact = append(exact, host)
		}
	}
	for host := range r.hosts {
		add(host)
	}
	for at := range r.provided {
		add(at.host)
	}
	// Wider names come first.
	for _, host := range append(wildcards, exact...) {
		found, wider := r.tlsOf(host), noTLS
		if at, ok := bestHost(r.listenerHosts, host); ok {
			wider = r.listenerHosts[at]
		}
		if !found.same(wider) {
			r.listenerHosts[host] = found
		}
	}
}

func (t *ingressTLS) same(as *ingressTLS) bool {
	return t.passthrough == as.passthrough && slices.EqualFunc(t.certificates, as.certificates, isSameCertificate)
}

func isSameCertificate(a, b *certificate.Certificate) bool { return a.Resource.Name == b.Resource.Name }

type security struct {
	// secured is true if the host has or requests TLS, certified if it has a certificate.
	secured, certified bool
	wanted             bool
}

// securityOf returns the TLS state of a host for the rules of a namespace. Certificates and TLS requests of a
// namespace that does not own the host apply to its own rules only. If TLS is requested but unavailable, the
// host must not serve plain text.
func (r *setCompiler) securityOf(host ownership.Host, namespace string) security {
	by := r.certificateNamespace(host)
	owner, owned := r.owners.Owner(host)
	if !owned {
		owner.Namespace = by
	}
	if namespace != by {
		by = owner.Namespace
	}
	found := security{certified: len(r.tlsBy(host, by).certificates) > 0}
	for _, namespace := range []string{by, owner.Namespace} {
		found.wanted = found.wanted || r.wanted[namespacedHost{namespace, host}] || r.wanted[namespacedHost{namespace, ""}] ||
			host != "" && !host.IsWildcard() && r.wanted[namespacedHost{namespace, host.Parent()}]
	}
	found.secured = found.certified || found.wanted || r.class.DefaultCertificate.Name != ""
	return found
}

func (r *setCompiler) securities(host ownership.Host) func(*ingressRule) security {
	known := map[string]security{}
	return func(rule *ingressRule) security {
		namespace := ""
		if rule.ingress != nil {
			namespace = rule.ingress.Namespace
		}
		found, is := known[namespace]
		if !is {
			name := host
			if owner, _ := r.owners.Owner(host); r.hosts[host].isInherited && owner.Namespace == namespace {
				name = host.Parent()
			}
			found = r.securityOf(name, namespace)
			known[namespace] = found
		}
		return found
	}
}

func (r *setCompiler) addTLS(ingress *networkingv1.Ingress) {
	for i := range ingress.Spec.TLS {
		entry := &ingress.Spec.TLS[i]
		hosts := r.tlsHosts(ingress, entry, i)
		for _, host := range hosts {
			r.wanted[namespacedHost{ingress.Namespace, host.name}] = true
		}
		if entry.SecretName == "" {
			r.refuseTLS(ingress, hosts, model.ReasonNotFound)
			if r.class.DefaultCertificate.Name == "" {
				r.AddProblem(ingressObject(ingress), fmt.Sprintf("spec.tls[%d].secretName", i), model.ReasonNotFound,
					"it is empty, and the class has no "+parameters.DefaultCertificate)
			}
			continue
		}
		found, refused := r.CertificateOf(types.NamespacedName{Namespace: ingress.Namespace, Name: entry.SecretName})
		if refused != nil {
			r.refuseTLS(ingress, hosts, refused.Reason)
			r.AddProblem(ingressObject(ingress), fmt.Sprintf("spec.tls[%d].secretName", i), refused.Reason, refused.Message)
			continue
		}
		if found.Flaw != "" {
			r.AddProblem(ingressObject(ingress), fmt.Sprintf("spec.tls[%d].secretName", i), model.ReasonInvalidCertificate,
				fmt.Sprintf("Secret %s/%s: %s", ingress.Namespace, entry.SecretName, found.Flaw))
		}
		for _, host := range hosts {
			r.addCertificate(ingress, host, found)
		}
	}
}

func (r *setCompiler) refuseTLS(ingress *networkingv1.Ingress, hosts []tlsHost, reason string) {
	for _, host := range hosts {
		r.refused[ingress] = append(r.refused[ingress], refusedTLS{host.name, reason})
	}
}

type tlsHost struct {
	name ownership.Host
	// entry is an index in spec.tls, host in the entry's hosts, and rule in spec.rules; -1 if it does not
	// apply.
	entry, host, rule int
}

func (h tlsHost) field() string {
	switch {
	case h.host >= 0:
		return fmt.Sprintf("spec.tls[%d].hosts[%d]", h.entry, h.host)
	case h.rule >= 0:
		return fmt.Sprintf("spec.rules[%d].host", h.rule)
	}
	return fmt.Sprintf("spec.tls[%d]", h.entry)
}

// tlsHosts returns the hosts of an entry of spec.tls. An entry without hosts applies to all hosts of the
// rules.
func (r *setCompiler) tlsHosts(ingress *networkingv1.Ingress, entry *networkingv1.IngressTLS, number int) []tlsHost {
	hosts := make([]tlsHost, 0, max(len(entry.Hosts), 1))
	known := make(map[ownership.Host]bool, len(entry.Hosts))
	add := func(found tlsHost) {
		if !known[found.name] {
			known[found.name] = true
			hosts = append(hosts, found)
		}
	}
	for i, text := range entry.Hosts {
		at := tlsHost{entry: number, host: i, rule: -1}
		host, err := ownership.ParseHost(text)
		if err != nil {
			r.AddProblem(ingressObject(ingress), at.field(), model.ReasonInvalid, err.Error())
			continue
		}
		at.name = host
		add(at)
	}
	if len(entry.Hosts) > 0 {
		return hosts
	}
	for i, rule := range ingress.Spec.Rules {
		// An invalid host is reported for its rule.
		if host, err := ownership.ParseHost(rule.Host); err == nil {
			add(tlsHost{name: host, entry: number, host: -1, rule: i})
		}
	}
	if len(hosts) == 0 {
		hosts = append(hosts, tlsHost{entry: number, host: -1, rule: -1})
	}
	return hosts
}

// addCertificate adds a certificate for a host. The certificate of the namespace's oldest Ingress for the
// host is kept.
func (r *setCompiler) addCertificate(ingress *networkingv1.Ingress, at tlsHost, found *certificate.Certificate) {
	host, own := at.name, namespacedHost{ingress.Namespace, at.name}
	if !found.Covers(host) {
		message := fmt.Sprintf("the certificate is for %v, not for %s", found.Names(), host)
		previous := r.Certificates.PreviousFor(host, types.NamespacedName{Namespace: ingress.Namespace, Name: ingress.Spec.TLS[at.entry].SecretName}, found)
		if previous == nil {
			r.refuseTLS(ingress, []tlsHost{at}, model.ReasonInvalidCertificate)
			r.AddProblem(ingressObject(ingress), at.field(), model.ReasonInvalidCertificate, message)
			return
		}
		r.AddProblem(ingressObject(ingress), at.field(), model.ReasonInvalidCertificate, message+"; the previous certificate is still served")
		found = previous
	}
	known := r.provided[own]
	switch {
	case host == "" && r.classDefault != nil:
		if !isSameCertificate(r.classDefault.certificates[0], found) {
			r.AddProblem(ingressObject(ingress), at.field(), model.ReasonConflict,
				"the class has a certificate for all hosts, "+parameters.DefaultCertificate+": list the hosts")
		}
		return
	case known == nil:
		if r.firstNamespace[host] == "" {
			r.firstNamespace[host] = ingress.Namespace
		}
		// A certificate for a wildcard without rules applies to exact names of its namespace.
		_, owned := r.owners.Owner(host)
		if r.certificateNamespace(host) != ingress.Namespace && (owned || !host.IsWildcard()) {
			r.AddProblem(ingressObject(ingress), at.field(), model.ReasonConflict, builder.HostOwned)
		}
		r.provided[own] = &ingressTLS{owner: ingress, certificates: []*certificate.Certificate{found}}
	case slices.ContainsFunc(known.certificates, func(c *certificate.Certificate) bool { return isSameCertificate(c, found) }):
	case known.owner != ingress:
		r.AddProblem(ingressObject(ingress), at.field(), model.ReasonConflict,
			fmt.Sprintf("the older Ingress %s/%s has another certificate for %s", known.owner.Namespace, known.owner.Name, host))
	default:
		known.certificates = append(known.certificates, found)
	}
}
