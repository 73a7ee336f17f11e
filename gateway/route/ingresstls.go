// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// ingressTLS is the certificates of one host.
type ingressTLS struct {
	certificates []*certificate
	// owner is the Ingress that the certificates come from: one of another age has no say.
	// It is nil for the class's own.
	owner *networkingv1.Ingress
}

// sorted has elliptic keys first, then the order in which they were found.
func (t *ingressTLS) sorted() []*certificate {
	if len(t.certificates) < 2 {
		return t.certificates
	}
	return slices.SortedStableFunc(slices.Values(t.certificates), func(a, b *certificate) int {
		return -cmp.Compare(number(a.elliptic()), number(b.elliptic()))
	})
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// addDefaultCertificate gives the class's own certificate to all hosts. It goes before those of
// Ingresses: none of them gives all hosts another one.
func (r *ingressRun) addDefaultCertificate() {
	at := r.class.defaultCertificate
	if at.name == "" {
		return
	}
	found, refused := r.certificateOf(at)
	if refused != nil {
		r.problem(Object{Kind: "IngressClass", Name: r.class.name},
			"parameters."+ParameterDefaultCertificate, refused.reason, refused.message)
		return
	}
	r.tls[""] = &ingressTLS{certificates: []*certificate{found}}
}

// claim notes who is served with the class's own certificate: no younger Ingress of another namespace
// brings another one for the host.
func (r *ingressRun) claim(ingress *networkingv1.Ingress, host hostname) {
	if all := r.tls[""]; all != nil && all.owner == nil && r.claimed[host] == nil {
		r.claimed[host] = ingress
	}
}

// claimRules claims the hosts of an Ingress's rules.
func (r *ingressRun) claimRules(ingress *networkingv1.Ingress) {
	for i := range ingress.Spec.Rules {
		// The problem of a host that cannot be read is told of its rule.
		if host, err := parseHostname(ingress.Spec.Rules[i].Host); err == nil {
			r.claim(ingress, host)
		}
	}
}

// addTLS reads the certificates of an Ingress.
func (r *ingressRun) addTLS(ingress *networkingv1.Ingress) {
	for i := range ingress.Spec.TLS {
		entry := &ingress.Spec.TLS[i]
		hosts := r.tlsHosts(ingress, entry, i)
		for _, host := range hosts {
			r.wanted[host.name] = true
		}
		if entry.SecretName == "" {
			r.refuseTLS(ingress, hosts, ReasonNotFound)
			if r.class.defaultCertificate.name == "" {
				r.problem(ingressObject(ingress), fmt.Sprintf("spec.tls[%d].secretName", i), ReasonNotFound,
					"it is empty, and the class has no "+ParameterDefaultCertificate)
			}
			for _, host := range hosts {
				r.claim(ingress, host.name)
			}
			continue
		}
		found, refused := r.certificateOf(key{ingress.Namespace, entry.SecretName})
		if refused != nil {
			r.refuseTLS(ingress, hosts, refused.reason)
			r.problem(ingressObject(ingress), fmt.Sprintf("spec.tls[%d].secretName", i), refused.reason, refused.message)
			continue
		}
		for _, host := range hosts {
			r.addCertificate(ingress, host, found)
		}
	}
}

// refuseTLS notes that hosts get no certificate of an Ingress.
func (r *ingressRun) refuseTLS(ingress *networkingv1.Ingress, hosts []tlsHost, reason string) {
	for _, host := range hosts {
		r.refused[ingress] = append(r.refused[ingress], refusedTLS{host.name, reason})
	}
}

// tlsHost is a host of an entry, and where it stands.
type tlsHost struct {
	name hostname
	// entry is the number in spec.tls; host the one in its hosts, or -1; rule that of the rule
	// with the host, or -1.
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

// tlsHosts gives the hosts of an entry. An entry without hosts is for all hosts of the Ingress's
// rules.
func (r *ingressRun) tlsHosts(ingress *networkingv1.Ingress, entry *networkingv1.IngressTLS, number int) []tlsHost {
	hosts := make([]tlsHost, 0, max(len(entry.Hosts), 1))
	known := make(map[hostname]bool, len(entry.Hosts))
	add := func(found tlsHost) {
		if !known[found.name] {
			known[found.name] = true
			hosts = append(hosts, found)
		}
	}
	for i, text := range entry.Hosts {
		at := tlsHost{entry: number, host: i, rule: -1}
		host, err := parseHostname(text)
		if err != nil {
			r.problem(ingressObject(ingress), at.field(), ReasonInvalid, err.Error())
			continue
		}
		at.name = host
		add(at)
	}
	if len(entry.Hosts) > 0 {
		return hosts
	}
	for i, rule := range ingress.Spec.Rules {
		// The problem of a host that cannot be read is told of its rule.
		if host, err := parseHostname(rule.Host); err == nil {
			add(tlsHost{name: host, entry: number, host: -1, rule: i})
		}
	}
	if len(hosts) == 0 {
		hosts = append(hosts, tlsHost{entry: number, host: -1, rule: -1})
	}
	return hosts
}

// addCertificate gives a host a certificate, where no older Ingress has given it one.
func (r *ingressRun) addCertificate(ingress *networkingv1.Ingress, at tlsHost, found *certificate) {
	host := at.name
	if !found.covers(host) {
		r.refuseTLS(ingress, []tlsHost{at}, ReasonInvalidCertificate)
		r.problem(ingressObject(ingress), at.field(), ReasonInvalidCertificate,
			fmt.Sprintf("the certificate is for %v, not for %s", found.leaf.DNSNames, host))
		return
	}
	known := r.tls[host]
	if older := r.claimed[host]; known == nil && older != nil && older.Namespace != ingress.Namespace {
		r.problem(ingressObject(ingress), at.field(), ReasonConflict,
			fmt.Sprintf("Ingress %s/%s is older and has %s with the class's %s",
				older.Namespace, older.Name, displayed(host), ParameterDefaultCertificate))
		return
	}
	if known == nil {
		known = &ingressTLS{owner: ingress}
		r.tls[host] = known
	}
	if slices.ContainsFunc(known.certificates, func(c *certificate) bool { return c.resource.Name == found.resource.Name }) {
		return
	}
	if known.owner == nil {
		r.problem(ingressObject(ingress), at.field(), ReasonConflict,
			"the class gives all hosts a certificate: "+ParameterDefaultCertificate+"; name the hosts")
		return
	}
	if known.owner != ingress {
		r.problem(ingressObject(ingress), at.field(), ReasonConflict,
			fmt.Sprintf("Ingress %s/%s is older and gives %s another certificate",
				known.owner.Namespace, known.owner.Name, displayed(host)))
		return
	}
	known.certificates = append(known.certificates, found)
}

// displayed names a host for people.
func displayed(host hostname) string {
	if host == "" {
		return "all hosts"
	}
	return string(host)
}
