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

// addTLS reads the certificates of an Ingress.
func (r *ingressRun) addTLS(ingress *networkingv1.Ingress) {
	for i := range ingress.Spec.TLS {
		entry := &ingress.Spec.TLS[i]
		field := fmt.Sprintf("spec.tls[%d]", i)
		hosts := r.tlsHosts(ingress, entry, field)
		for host := range hosts {
			r.wanted[host] = true
		}
		if entry.SecretName == "" {
			if r.class.defaultCertificate.name == "" {
				r.problem(ingressObject(ingress), field+".secretName", ReasonNotFound,
					"it is empty, and the class has no "+ParameterDefaultCertificate)
			}
			continue
		}
		found, refused := r.certificateOf(key{ingress.Namespace, entry.SecretName})
		if refused != nil {
			r.problem(ingressObject(ingress), field+".secretName", refused.reason, refused.message)
			continue
		}
		for host, at := range hosts {
			r.addCertificate(ingress, host, at, found)
		}
	}
}

// tlsHosts gives the hosts of an entry and their fields. An entry without hosts is for all
// hosts of the Ingress's rules.
func (r *ingressRun) tlsHosts(ingress *networkingv1.Ingress, entry *networkingv1.IngressTLS, field string) map[hostname]string {
	hosts := map[hostname]string{}
	add := func(text, field string) {
		host, err := parseHostname(text)
		if err != nil {
			r.problem(ingressObject(ingress), field, ReasonInvalid, err.Error())
			return
		}
		if _, known := hosts[host]; !known {
			hosts[host] = field
		}
	}
	for i, host := range entry.Hosts {
		add(host, fmt.Sprintf("%s.hosts[%d]", field, i))
	}
	if len(entry.Hosts) > 0 {
		return hosts
	}
	for i, rule := range ingress.Spec.Rules {
		// The problem of such a host is told of its rule.
		if _, err := parseHostname(rule.Host); err == nil {
			add(rule.Host, fmt.Sprintf("spec.rules[%d].host", i))
		}
	}
	if len(hosts) == 0 {
		hosts[""] = field
	}
	return hosts
}

// addCertificate gives a host a certificate, where no older Ingress has given it one.
func (r *ingressRun) addCertificate(ingress *networkingv1.Ingress, host hostname, field string, found *certificate) {
	if !found.covers(host) {
		r.problem(ingressObject(ingress), field, ReasonInvalidCertificate,
			fmt.Sprintf("the certificate is for %v, not for %s", found.leaf.DNSNames, host))
		return
	}
	known := r.tls[host]
	if known == nil {
		known = &ingressTLS{owner: ingress}
		r.tls[host] = known
	}
	if slices.ContainsFunc(known.certificates, func(c *certificate) bool { return c.resource.Name == found.resource.Name }) {
		return
	}
	if known.owner != ingress {
		r.problem(ingressObject(ingress), field, ReasonConflict,
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
