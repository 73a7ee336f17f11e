// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// addNames adds what annotations say of whole hosts, once the rules of all Ingresses are known: a
// name that has rules of its own keeps them.
func (r *ingressRun) addNames() {
	for _, ingress := range r.members {
		says := r.asked[ingress]
		if says == nil || says.isRefused || says.isCanary() {
			continue
		}
		seen := map[hostname]bool{}
		for i := range ingress.Spec.Rules {
			name, err := parseHostname(ingress.Spec.Rules[i].Host)
			if err == nil && r.hosts[name] != nil && !seen[name] {
				seen[name] = true
				r.addNamesOf(ingress, name)
			}
		}
	}
}

// addNamesOf adds what an Ingress says of one of its hosts.
func (r *ingressRun) addNamesOf(ingress *networkingv1.Ingress, host hostname) {
	says := r.asked[ingress]
	if says.SSLPassthrough {
		r.passThrough(ingress, host)
	}
	if says.AppRoot != "" {
		r.addAppRoot(ingress, host)
	}
	r.addAliases(ingress, host)
	if says.FromToWWW {
		r.addWWW(ingress, host)
	}
}

// rootRule is the rule of "/" of a host, or nil.
func (h *ingressHost) rootRule() *ingressRule {
	for _, kind := range []resource.PathMatch_Kind{resource.PathMatch_EXACT, resource.PathMatch_PREFIX} {
		if found := h.rules[ingressPath{kind, "/"}]; found != nil {
			return found
		}
	}
	return nil
}

// addAppRoot redirects "/" of a host.
func (r *ingressRun) addAppRoot(ingress *networkingv1.Ingress, host hostname) {
	if root := r.hosts[host].rootRule(); root != nil && root.ingress != ingress || r.hosts[host].root != nil {
		r.annotation(ingress, "app-root", ReasonConflict, "/ of "+displayed(host)+" is of another Ingress")
		return
	}
	r.hosts[host].root = &resource.Rule{
		Route: fmt.Sprintf("ingress/%s/%s/app-root", ingress.Namespace, ingress.Name),
		Match: &resource.Match{Path: &resource.PathMatch{Kind: resource.PathMatch_EXACT, Value: "/"}},
		Filters: []*resource.Filter{{Kind: &resource.Filter_Redirect{Redirect: &resource.Redirect{
			Path:   &resource.PathChange{Kind: &resource.PathChange_ReplaceFullPath{ReplaceFullPath: r.asked[ingress].AppRoot}},
			Status: 302,
		}}}},
	}
}

// addAliases gives the rules of a host further names. Its certificates are for those that they
// cover.
func (r *ingressRun) addAliases(ingress *networkingv1.Ingress, host hostname) {
	for _, text := range r.asked[ingress].Aliases {
		alias, err := parseHostname(text)
		if err != nil || alias == "" {
			r.annotation(ingress, "server-alias", ReasonInvalid, fmt.Sprintf("%q is no host name", text))
			continue
		}
		if known := r.hosts[alias]; known != nil {
			if known != r.hosts[host] {
				r.annotation(ingress, "server-alias", ReasonConflict, string(alias)+" has rules of its own")
			}
			continue
		}
		if !r.roomForAlias(ingress, host) {
			refused := r.settings.noRoom("server-alias", ingress.Namespace)
			r.annotation(ingress, "server-alias", refused.reason, refused.message)
			return
		}
		r.hosts[alias] = r.hosts[host]
		r.shareTLS(host, alias)
	}
}

// aliasPart is the part of the room of a namespace, and of all, that is for repeated rules.
const aliasPart = 4

// roomForAlias takes room for the rules of a host once more. They may be of others: who repeats them
// pays.
func (r *ingressRun) roomForAlias(ingress *networkingv1.Ingress, host hostname) bool {
	of := r.hosts[host]
	if of.bytes == 0 {
		of.bytes = entryBytes
		for _, rule := range of.rules {
			for _, each := range rule.shared() {
				// Plain HTTP may have rules of its own.
				of.bytes += 2 * int64(proto.Size(each))
			}
		}
	}
	if r.aliases[ingress.Namespace]+of.bytes > r.settings.NamespaceBytes/aliasPart || r.aliases[""]+of.bytes > r.settings.ProxyBytes/aliasPart {
		return false
	}
	r.aliases[ingress.Namespace] += of.bytes
	r.aliases[""] += of.bytes
	return true
}

// shareTLS gives a name the certificates of a host that cover it, and what is wanted of TLS.
func (r *ingressRun) shareTLS(host, alias hostname) {
	if _, wanted := bestHost(r.wanted, host); wanted {
		r.wanted[alias] = true
	}
	at, found := bestHost(r.tls, host)
	if _, has := r.tls[alias]; !found || has || at == "" {
		return
	}
	of := &ingressTLS{owner: r.tls[at].owner}
	for _, certificate := range r.tls[at].certificates {
		if certificate.covers(alias) {
			of.certificates = append(of.certificates, certificate)
		}
	}
	if len(of.certificates) > 0 {
		r.tls[alias] = of
	}
}

// addWWW redirects from "www." before a host, or without it, to the host.
func (r *ingressRun) addWWW(ingress *networkingv1.Ingress, host hostname) {
	other, is := strings.CutPrefix(string(host), "www.")
	if !is {
		other = "www." + other
	}
	from, err := parseHostname(other)
	if err != nil || host == "" || host.wildcard() || r.hosts[from] != nil {
		return
	}
	r.shareTLS(host, from)
	r.host(from).rules[ingressPath{resource.PathMatch_PREFIX, "/"}] = &ingressRule{ingress: ingress, rule: &resource.Rule{
		Route: fmt.Sprintf("ingress/%s/%s/www", ingress.Namespace, ingress.Name),
		Match: &resource.Match{Path: &resource.PathMatch{Value: "/"}},
		Filters: []*resource.Filter{{Kind: &resource.Filter_Redirect{Redirect: &resource.Redirect{
			Hostname: string(host), Status: 308,
		}}}},
	}}
}

// passThrough gives the TLS connections of a host to the backend of its "/", where nobody else has
// a rule.
func (r *ingressRun) passThrough(ingress *networkingv1.Ingress, host hostname) {
	if host == "" || slices.ContainsFunc(slices.Collect(r.ingressesOf(host)), func(other *networkingv1.Ingress) bool { return other != ingress }) {
		r.annotation(ingress, "ssl-passthrough", ReasonConflict, displayed(host)+" has rules of another Ingress, or is no name")
		return
	}
	if says := r.asked[ingress]; says.Auth != nil || says.External != nil {
		r.annotation(ingress, "ssl-passthrough", ReasonConflict,
			"it is not carried out: nobody can be asked for a password in connections that are passed on")
		return
	}
	root := r.hosts[host].rootRule()
	if root == nil || root.backend == nil {
		r.annotation(ingress, "ssl-passthrough", ReasonInvalid, "there is no path / whose backend could get the connections")
		return
	}
	rule := &resource.Rule{
		Route:    fmt.Sprintf("ingress/%s/%s/passthrough", ingress.Namespace, ingress.Name),
		Backends: r.backend(ingress, root.backend, speech{protocol: resource.Backend_TCP, encrypted: true}, func() string { return "spec.rules" }),
	}
	if says := r.asked[ingress]; len(says.Allow)+len(says.Deny) > 0 {
		rule.Filters = []*resource.Filter{addresses(says.Allow, says.Deny)}
	}
	r.tunnels[host] = rule
}

// ingressesOf are those that have rules of a host.
func (r *ingressRun) ingressesOf(host hostname) func(func(*networkingv1.Ingress) bool) {
	return func(yield func(*networkingv1.Ingress) bool) {
		for _, rule := range r.hosts[host].rules {
			if !yield(rule.ingress) {
				return
			}
		}
	}
}
