// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

// addHostRules adds the rules that annotations of an Ingress add to a host. If the Ingress's namespace does
// not own the host, it only reports the annotations.
func (r *setCompiler) addHostRules(ingress *networkingv1.Ingress, host ownership.Host) {
	settings := r.nginxSettings[ingress]
	if !r.owners.Owns(host, ingress.Namespace) {
		for name, wanted := range map[string]bool{
			"ssl-passthrough": settings.SSLPassthrough, "app-root": settings.AppRoot != "", "server-alias": len(settings.Aliases) > 0,
			"from-to-www-redirect": settings.FromToWWW,
		} {
			if wanted {
				r.annotation(ingress, name, model.ReasonConflict, builder.HostOwned)
			}
		}
		return
	}
	if settings.SSLPassthrough && !settings.isRefused {
		r.passThrough(ingress, host)
	}
	if settings.AppRoot != "" && !settings.isRefused {
		r.addAppRoot(ingress, host)
	}
}

// addHostNames adds the names that annotations of an Ingress add to a host, if the Ingress's namespace owns
// the host.
func (r *setCompiler) addHostNames(ingress *networkingv1.Ingress, host ownership.Host) {
	if !r.owners.Owns(host, ingress.Namespace) {
		return
	}
	r.addAliases(ingress, host)
	if r.nginxSettings[ingress].FromToWWW {
		r.addWWW(ingress, host)
	}
}

func (h *ingressHost) rootRule() *ingressRule {
	for _, kind := range []resource.PathMatch_Kind{resource.PathMatch_EXACT, resource.PathMatch_PREFIX} {
		if found := h.rules[ingressPath{kind, "/"}]; found != nil {
			return found
		}
	}
	return nil
}

func (r *setCompiler) addAppRoot(ingress *networkingv1.Ingress, host ownership.Host) {
	root := r.hosts[host].rootRule()
	// A younger rule of another namespace is not a conflict.
	isTaken := root != nil && root.ingress != ingress && (root.ingress.Namespace == ingress.Namespace || r.ages[root.ingress] < r.ages[ingress])
	if isTaken || r.hosts[host].root != nil {
		r.annotation(ingress, "app-root", model.ReasonConflict, "path / of "+host.String()+" belongs to another Ingress")
		return
	}
	r.hosts[host].root = &resource.Rule{
		Route: fmt.Sprintf("ingress/%s/%s/app-root", ingress.Namespace, ingress.Name),
		Match: &resource.Match{Path: &resource.PathMatch{Kind: resource.PathMatch_EXACT, Value: "/"}},
		Filters: []*resource.Filter{{Kind: &resource.Filter_Redirect{Redirect: &resource.Redirect{
			Path:   &resource.PathChange{Kind: &resource.PathChange_ReplaceFullPath{ReplaceFullPath: r.nginxSettings[ingress].AppRoot}},
			Status: 302,
		}}}},
	}
}

func (r *setCompiler) addAliases(ingress *networkingv1.Ingress, host ownership.Host) {
	for _, text := range r.nginxSettings[ingress].Aliases {
		alias, err := ownership.ParseHost(text)
		if err != nil || alias == "" {
			r.annotation(ingress, "server-alias", model.ReasonInvalid, fmt.Sprintf("%q is not a host name", text))
			continue
		}
		known := r.hosts[alias]
		switch {
		case !r.owners.Owns(alias, ingress.Namespace):
			r.annotation(ingress, "server-alias", model.ReasonConflict, string(alias)+": "+builder.HostOwned)
			continue
		case alias == host, r.aliasOf[alias] == host && host != "":
			continue
		case known != nil && known.isOwned:
			r.annotation(ingress, "server-alias", model.ReasonConflict, string(alias)+" has its own rules")
			continue
		case !r.roomForAlias(ingress, host):
			refused := r.LimitExceeded("server-alias", ingress.Namespace)
			r.annotation(ingress, "server-alias", refused.Reason, refused.Message)
			return
		}
		r.addName(alias, r.hosts[host], host)
		r.aliasOf[alias] = host
		r.shareTLS(ingress.Namespace, host, alias)
	}
}

// aliasPart is the divisor of the limits of a namespace and of the proxy for repeated rules.
const aliasPart = 4

func (r *setCompiler) roomForAlias(ingress *networkingv1.Ingress, host ownership.Host) bool {
	of := r.hosts[host]
	if of.bytes == 0 {
		of.bytes = builder.EntryBytes
		for _, rule := range of.rules {
			if !r.owners.Owns(host, rule.ingress.Namespace) {
				continue
			}
			for _, each := range rule.withCanary() {
				// The rules for plain HTTP can differ from those for HTTPS.
				of.bytes += 2 * int64(proto.Size(each))
			}
		}
	}
	if r.aliases[ingress.Namespace]+of.bytes > r.Settings.NamespaceBytes/aliasPart || r.aliases[""]+of.bytes > r.Settings.ProxyBytes/aliasPart {
		return false
	}
	r.aliases[ingress.Namespace] += of.bytes
	r.aliases[""] += of.bytes
	return true
}

func (r *setCompiler) shareTLS(namespace string, host, alias ownership.Host) {
	at := namespacedHost{namespace, alias}
	if r.securityOf(host, namespace).wanted {
		r.wanted[at] = true
	}
	found := r.ownTLS(namespace, host)
	if found == nil || r.provided[at] != nil {
		return
	}
	of := &ingressTLS{owner: found.owner}
	for _, certificate := range found.certificates {
		if certificate.Covers(alias) {
			of.certificates = append(of.certificates, certificate)
		}
	}
	if len(of.certificates) > 0 {
		r.provided[at] = of
	}
}

func (r *setCompiler) addWWW(ingress *networkingv1.Ingress, host ownership.Host) {
	from := otherWWW(host)
	switch {
	case from == "":
		return
	case !r.owners.Owns(from, ingress.Namespace):
		r.annotation(ingress, "from-to-www-redirect", model.ReasonConflict, string(from)+": "+builder.HostOwned)
		return
	}
	if r.addName(from, &ingressHost{isOwned: true, rules: map[ingressPath]*ingressRule{
		{resource.PathMatch_PREFIX, "/"}: {ingress: ingress, rule: &resource.Rule{
			Route: fmt.Sprintf("ingress/%s/%s/www", ingress.Namespace, ingress.Name),
			Match: &resource.Match{Path: &resource.PathMatch{Value: "/"}},
			Filters: []*resource.Filter{{Kind: &resource.Filter_Redirect{Redirect: &resource.Redirect{
				Hostname: string(host), Status: 308,
			}}}},
		}},
	}}, host) {
		r.shareTLS(ingress.Namespace, host, from)
	}
}

// passThrough passes TLS connections through to the backend of path "/", unless an older Ingress has a rule
// for the host. Paths of younger Ingresses are then served over plain HTTP only.
func (r *setCompiler) passThrough(ingress *networkingv1.Ingress, host ownership.Host) {
	root := r.hosts[host].rootRule()
	settings := r.nginxSettings[ingress]
	switch {
	case host == "", r.hasOlder(host, ingress):
		r.annotation(ingress, "ssl-passthrough", model.ReasonConflict, host.String()+" has rules of an older Ingress, or is not a host name")
	case settings.Auth != nil || settings.External != nil:
		r.annotation(ingress, "ssl-passthrough", model.ReasonConflict,
			"it is not supported with authentication, because TLS connections are passed through")
	case root == nil || root.backend == nil || root.ingress != ingress:
		r.annotation(ingress, "ssl-passthrough", model.ReasonInvalid, "the Ingress has no path / with a backend for the connections")
	default:
		r.passthroughs[host] = &ingressTLS{passthrough: r.passthroughRule(ingress, root.backend), owner: ingress}
	}
}

func (r *setCompiler) hasOlder(host ownership.Host, than *networkingv1.Ingress) bool {
	for _, rule := range r.hosts[host].rules {
		if r.ages[rule.ingress] < r.ages[than] {
			return true
		}
	}
	return false
}
