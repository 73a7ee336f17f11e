// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"regexp"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

type canary struct {
	*nginx.Canary
	ingress  *networkingv1.Ingress
	backends []*resource.WeightedBackend
}

func (r *setCompiler) addCanary(ingress *networkingv1.Ingress) {
	settings := r.nginxSettings[ingress]
	for i := range ingress.Spec.Rules {
		rule := &ingress.Spec.Rules[i]
		name, err := ownership.ParseHost(rule.Host)
		if err != nil || rule.HTTP == nil || r.hosts[name] == nil {
			r.reportUnmatchedCanary(ingress, fmt.Sprintf("spec.rules[%d]", i))
			continue
		}
		for j := range rule.HTTP.Paths {
			at, path := ingressAt{rule: i, path: j}, &rule.HTTP.Paths[j]
			match, _, err := r.parsePath(ingress, name, path)
			if err != nil {
				r.AddProblem(ingressObject(ingress), at.field()+".path", model.ReasonInvalid, err.Error())
				continue
			}
			of := r.hosts[name].rules[match]
			switch {
			case of == nil || of.ingress.Namespace != ingress.Namespace:
				r.reportUnmatchedCanary(ingress, at.field())
			case of.canary != nil:
				r.AddProblem(ingressObject(ingress), at.field(), model.ReasonConflict,
					fmt.Sprintf("Ingress %s/%s is an older canary of the path", of.canary.ingress.Namespace, of.canary.ingress.Name))
			default:
				backends := r.backend(ingress, &path.Backend, r.nginxSettings[of.ingress].upstream(), func() string { return at.field() + ".backend" })
				of.canary = &canary{Canary: settings.Canary, ingress: ingress, backends: backends}
			}
		}
	}
}

func (r *setCompiler) reportUnmatchedCanary(ingress *networkingv1.Ingress, field string) {
	r.AddProblem(ingressObject(ingress), field, model.ReasonNotFound,
		"no other Ingress of the namespace has the path: a canary by itself is not served")
}

func (r *ingressRule) withCanary() []*resource.Rule {
	if r.canary == nil || len(r.rule.Backends) == 0 {
		return []*resource.Rule{r.rule}
	}
	var rules []*resource.Rule
	add := func(header *resource.ValueMatch, backends []*resource.WeightedBackend) {
		match := r.rule.Match
		rule := builder.WithMatch(r.rule, &resource.Match{Path: match.Path, Headers: append([]*resource.ValueMatch{header}, match.Headers...)})
		rule.Backends = backends
		rules = append(rules, rule)
	}
	always, never := r.canary.backends, r.rule.Backends
	switch name := strings.ToLower(r.canary.Header); {
	case name == "":
	case r.canary.Value != "":
		add(&resource.ValueMatch{Name: name, Value: r.canary.Value}, always)
	case r.canary.Pattern != "":
		add(&resource.ValueMatch{Name: name, Value: "(?s:.*)(?:" + r.canary.Pattern + ")(?s:.*)", RegularExpression: true}, always)
	default:
		add(&resource.ValueMatch{Name: name, Value: "always"}, always)
		add(&resource.ValueMatch{Name: name, Value: "never"}, never)
	}
	if r.canary.Cookie != "" {
		add(cookieMatch(r.canary.Cookie, "always"), always)
		add(cookieMatch(r.canary.Cookie, "never"), never)
	}
	return append(rules, r.weightedRule())
}

func (r *ingressRule) weightedRule() *resource.Rule {
	if r.canary.Weight == 0 {
		return r.rule
	}
	rule := builder.WithMatch(r.rule, r.rule.Match)
	rule.Backends = []*resource.WeightedBackend{
		{Backend: r.rule.Backends[0].Backend, Weight: r.canary.Total - r.canary.Weight},
		{Backend: r.canary.backends[0].Backend, Weight: r.canary.Weight},
	}
	return rule
}

func cookieMatch(name, value string) *resource.ValueMatch {
	return &resource.ValueMatch{Name: "cookie", RegularExpression: true,
		Value: "(?:(?s:.*);)? *" + regexp.QuoteMeta(name) + "=" + value + " *(?:;(?s:.*))?"}
}
