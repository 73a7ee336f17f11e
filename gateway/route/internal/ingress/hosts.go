// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"regexp"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/pathmatch"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

// claimHosts claims the hosts of all Ingresses. Ingresses without room own their hosts, too.
func (c *compiler) claimHosts(of *ingressSet) {
	of.owners = ownership.NewHosts(of.class.HostOwnership())
	of.ages = make(map[*networkingv1.Ingress]int, len(of.members))
	for age, ingress := range of.members {
		of.ages[ingress] = age
		if c.nginxSettings[ingress].isCanary() {
			continue
		}
		owner := ownership.Owner{Namespace: ingress.Namespace, Age: age}
		if len(ingress.Spec.Rules) == 0 && ingress.Spec.DefaultBackend != nil && of.catchAll == "" {
			of.catchAll = ingress.Namespace
		}
		for i := range ingress.Spec.Rules {
			host, err := ownership.ParseHost(ingress.Spec.Rules[i].Host)
			if err == nil && of.owners.Claim(host, owner) && of.owners.Owns(host, ingress.Namespace) {
				c.claimNames(of, ingress, host)
			}
		}
	}
}

func (c *compiler) claimNames(of *ingressSet, ingress *networkingv1.Ingress, host ownership.Host) {
	settings, owner := c.nginxSettings[ingress], ownership.Owner{Namespace: ingress.Namespace, Age: of.ages[ingress]}
	if settings == nil {
		return
	}
	for _, text := range settings.Aliases {
		if alias, err := ownership.ParseHost(text); err == nil && alias != "" {
			of.owners.ClaimWhole(alias, owner)
		}
	}
	if other := otherWWW(host); settings.FromToWWW && other != "" {
		of.owners.ClaimWhole(other, owner)
	}
}

func otherWWW(host ownership.Host) ownership.Host {
	if host == "" || host.IsWildcard() {
		return ""
	}
	other, is := strings.CutPrefix(string(host), "www.")
	if !is {
		other = "www." + other
	}
	found, err := ownership.ParseHost(other)
	if err != nil {
		return ""
	}
	return found
}

// canShareHost reports whether an Ingress can add a path to a host of another namespace. It can add neither
// regular expressions nor rules that would answer 500.
func (r *setCompiler) canShareHost(ingress *networkingv1.Ingress, path string, at ingressAt) bool {
	settings := r.nginxSettings[ingress]
	if settings == nil {
		return true
	}
	if settings.isRefused {
		r.AddProblem(ingressObject(ingress), at.field(), model.ReasonConflict, "the path is left out: "+builder.HostOwned)
		return false
	}
	if (settings.UseRegex || settings.rewrites(path)) && (regexp.QuoteMeta(path) != path || strings.Contains(settings.RewriteTarget, "$")) {
		r.AddProblem(ingressObject(ingress), at.field()+".path", model.ReasonConflict, builder.HostOwned+", which decides on expressions")
		return false
	}
	return true
}

// ruleOfOther returns the rule of another namespace for a path, regardless of the match type, or nil.
func (h *ingressHost) ruleOfOther(path ingressPath, namespace string) *ingressRule {
	for _, value := range []string{path.value, pathmatch.TrimPrefix(path.value)} {
		for kind := range pathOrder {
			if found := h.rules[ingressPath{kind, value}]; found != nil && found.ingress.Namespace != namespace {
				return found
			}
		}
	}
	return nil
}

// inheritWildcards adds the paths of a wildcard to hosts that have only paths of other namespaces, so that
// these namespaces receive no other requests of the host.
func (r *setCompiler) inheritWildcards() {
	for name, host := range r.hosts {
		if name == "" || name.IsWildcard() || host.isOwned {
			continue
		}
		owner, _ := r.owners.Owner(name)
		if base := r.hosts[name.Parent()]; base != nil && r.owners.Owns(name.Parent(), owner.Namespace) {
			r.inherit(host, base, name.Parent())
			host.isInherited = true
		}
	}
}

// inherit adds the owner's paths of base to a host of other namespaces. Of two equal paths, that of the older
// object is kept.
func (r *setCompiler) inherit(host, base *ingressHost, name ownership.Host) {
	host.isOwned, host.fallback, host.root = true, base.fallback, base.root
	owned := make(map[ingressPath]*ingressRule, len(base.rules))
	for path, rule := range base.rules {
		if !r.owners.Owns(name, rule.ingress.Namespace) {
			continue
		}
		owned[path] = rule
		for foreign := host.ruleOfOther(path, rule.ingress.Namespace); foreign != nil && r.ages[foreign.ingress] > r.ages[rule.ingress]; {
			r.AddProblem(ingressObject(foreign.ingress), "spec.rules", model.ReasonConflict, builder.PathOwned)
			for at, found := range host.rules {
				if found == foreign {
					delete(host.rules, at)
				}
			}
			foreign = host.ruleOfOther(path, rule.ingress.Namespace)
		}
	}
	for path, rule := range owned {
		if host.ruleOfOther(path, rule.ingress.Namespace) == nil {
			host.rules[path] = rule
		}
	}
}

// addNames adds the names of annotations. It must run after the rules of all Ingresses, because a name copies
// all paths of its host, including those that annotations add.
func (r *setCompiler) addNames() {
	r.forEachHost(r.addHostRules)
	r.forEachHost(r.addHostNames)
}

func (r *setCompiler) forEachHost(do func(ingress *networkingv1.Ingress, host ownership.Host)) {
	for _, ingress := range r.members {
		settings := r.nginxSettings[ingress]
		if settings == nil || settings.isCanary() {
			continue
		}
		seen := map[ownership.Host]bool{}
		for i := range ingress.Spec.Rules {
			name, err := ownership.ParseHost(ingress.Spec.Rules[i].Host)
			if err == nil && r.hosts[name] != nil && !seen[name] {
				seen[name] = true
				do(ingress, name)
			}
		}
	}
}

// addName adds name as another name of host of, with the owner's paths in base. It returns false if the owner
// already has rules for name.
func (r *setCompiler) addName(name ownership.Host, base *ingressHost, of ownership.Host) bool {
	known := r.hosts[name]
	switch {
	case known == nil && !r.hasForeignRules(base, of):
		r.hosts[name] = base
		return true
	case known == nil:
		known = r.host(name)
	case known.isOwned:
		return false
	}
	r.inherit(known, base, of)
	return true
}

func (r *setCompiler) hasForeignRules(host *ingressHost, name ownership.Host) bool {
	for _, rule := range host.rules {
		if !r.owners.Owns(name, rule.ingress.Namespace) {
			return true
		}
	}
	return false
}

func (r *setCompiler) passthroughRule(ingress *networkingv1.Ingress, to *networkingv1.IngressBackend) *resource.Rule {
	rule := &resource.Rule{
		Route:    "ingress/" + ingress.Namespace + "/" + ingress.Name + "/passthrough",
		Backends: r.backend(ingress, to, builder.Upstream{Protocol: resource.Backend_TCP, Passthrough: true}, func() string { return "spec.rules" }),
	}
	if settings := r.nginxSettings[ingress]; len(settings.Allow)+len(settings.Deny) > 0 {
		rule.Filters = []*resource.Filter{addresses(settings.Allow, settings.Deny)}
	}
	return rule
}
