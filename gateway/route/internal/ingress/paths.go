// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"unicode/utf8"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/utils/ptr"

	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/pathmatch"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
	"github.com/millrace-lb/millrace/gateway/route/parameters"
)

// findExpressions finds the hosts whose paths are regular expressions. This applies if any Ingress of the
// owner has use-regex or rewrite-target.
func (r *setCompiler) findExpressions() {
	for _, ingress := range r.members {
		settings := r.nginxSettings[ingress]
		if settings == nil || settings.isCanary() {
			continue
		}
		for i := range ingress.Spec.Rules {
			rule := &ingress.Spec.Rules[i]
			name, err := ownership.ParseHost(rule.Host)
			if err != nil || rule.HTTP == nil || !r.owners.Owns(name, ingress.Namespace) {
				continue
			}
			for j := range rule.HTTP.Paths {
				if settings.UseRegex || settings.rewrites(rule.HTTP.Paths[j].Path) {
					r.expressions[name] = true
				}
			}
		}
	}
}

// parsePath parses a path. Paths of namespaces that do not own the host are never regular expressions.
func (r *setCompiler) parsePath(
	ingress *networkingv1.Ingress, host ownership.Host, path *networkingv1.HTTPIngressPath,
) (ingressPath, *resource.PathMatch, error) {
	settings, isExpression := r.nginxSettings[ingress], r.expressions[host] && r.owners.Owns(host, ingress.Namespace)
	isPrefix := r.class.Annotations == parameters.IngressNginx && ptr.Deref(path.PathType, "") == networkingv1.PathTypeImplementationSpecific
	if strings.Trim(path.Path, "/") == "" || !isExpression && !isPrefix {
		found, err := parseIngressPath(path)
		if isExpression {
			// "/" as an expression is a prefix of all paths.
			found.kind = resource.PathMatch_PREFIX
		}
		return found, &resource.PathMatch{Kind: found.kind, Value: found.value}, err
	}
	found := ingressPath{kind: resource.PathMatch_REGULAR_EXPRESSION, value: path.Path}
	var expression string
	if isExpression {
		// nginx matches the expression at the start of the path, ignoring case.
		expression = "(?i:" + path.Path + ")(?s:.*)"
		if err := validRegularPath(path.Path); err != nil {
			return found, nil, err
		}
	} else {
		// The path is a string prefix: /a also matches /ab.
		prefix, err := pathmatch.Canonical(path.Path)
		if err != nil {
			return found, nil, err
		}
		expression = pathmatch.StringPrefix(prefix)
	}
	steps, err := pathmatch.ExpressionSteps(expression)
	if err != nil {
		return found, nil, err
	}
	if settings != nil {
		if settings.steps += steps; settings.steps > pathmatch.MaxRouteSteps {
			return found, nil, fmt.Errorf("the regular expressions of the Ingress compile to more than %d instructions", pathmatch.MaxRouteSteps)
		}
	}
	return found, &resource.PathMatch{Kind: found.kind, Value: expression}, nil
}

// redirectSlashes redirects /a to the string prefix /a/, as nginx does, unless a rule or another namespace
// has path /a.
func (r *setCompiler) redirectSlashes() {
	for name, host := range r.hosts {
		if r.expressions[name] {
			continue
		}
		found := map[ingressPath]*ingressRule{}
		for path, rule := range host.rules {
			bare, is := strings.CutSuffix(path.value, "/")
			if !is || path.kind != resource.PathMatch_REGULAR_EXPRESSION || !r.owners.Owns(name, rule.ingress.Namespace) || rule.rule.Backends == nil {
				continue
			}
			from, err := pathmatch.Canonical(bare)
			if err != nil || host.at(from) != nil || host.at(bare) != nil {
				continue
			}
			found[ingressPath{resource.PathMatch_EXACT, from}] = &ingressRule{ingress: rule.ingress, rule: &resource.Rule{
				Route: rule.rule.Route,
				Match: &resource.Match{Path: &resource.PathMatch{Kind: resource.PathMatch_EXACT, Value: from}},
				Filters: []*resource.Filter{{Kind: &resource.Filter_Redirect{Redirect: &resource.Redirect{
					Path:   &resource.PathChange{Kind: &resource.PathChange_ReplaceFullPath{ReplaceFullPath: path.value}},
					Status: 301,
				}}}},
			}}
		}
		maps.Copy(host.rules, found)
	}
}

func (h *ingressHost) at(path string) *ingressRule {
	for kind := range pathOrder {
		if found := h.rules[ingressPath{kind, path}]; found != nil {
			return found
		}
	}
	return nil
}

// closedPath returns a match for all requests that an invalid path could match. It has the precedence of the
// path.
func (r *setCompiler) closedPath(host ownership.Host, path *networkingv1.HTTPIngressPath) (ingressPath, *resource.PathMatch) {
	text := strings.ToValidUTF8(path.Path, "#")
	if at := strings.IndexAny(text, "?#"); at >= 0 && !r.expressions[host] {
		text = text[:at]
	}
	if !r.expressions[host] {
		text = regexp.QuoteMeta(plan.CanonicalPath(text))
	}
	match := pathmatch.Superset(text)
	if r.expressions[host] {
		match.Value = "(?i:" + match.Value + ")"
	}
	return ingressPath{kind: match.Kind, value: path.Path}, match
}

func validRegularPath(path string) error {
	switch {
	case !strings.HasPrefix(path, "/"):
		return fmt.Errorf("%q does not begin with /", path)
	case len(path) > pathmatch.MaxPath:
		return fmt.Errorf("the path has %d characters, the limit is %d", len(path), pathmatch.MaxPath)
	case !utf8.ValidString(path), strings.ContainsFunc(path, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return errors.New("the path has control characters or is not valid UTF-8")
	}
	// Check the path without the group first, because an unmatched ")" must not close the group.
	return pathmatch.ValidateExpression(path)
}

// comparePaths orders paths by precedence: the longest first, then exact paths, element prefixes and string
// prefixes. Expressions of the same length are in descending order, as in nginx.
func comparePaths(a, b ingressPath) int {
	if order := cmp.Or(cmp.Compare(len(b.value), len(a.value)), cmp.Compare(pathOrder[a.kind], pathOrder[b.kind])); order != 0 {
		return order
	}
	if a.kind == resource.PathMatch_REGULAR_EXPRESSION {
		return strings.Compare(b.value, a.value)
	}
	return strings.Compare(a.value, b.value)
}

var pathOrder = map[resource.PathMatch_Kind]int{
	resource.PathMatch_EXACT: 0, resource.PathMatch_PREFIX: 1, resource.PathMatch_REGULAR_EXPRESSION: 2,
}
