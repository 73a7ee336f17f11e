// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func (c *Compiled) rule(from *resource.Rule, backends map[string]*resource.Backend) Rule {
	rule := Rule{Match: matchText(from.GetMatch()), Filters: filtersText(from.GetFilters())}
	rule.Route, rule.Rule = routeOf(from.GetRoute())
	for _, filter := range from.GetFilters() {
		if redirect := filter.GetRedirect(); redirect != nil {
			rule.Answer = redirectText(redirect)
			return rule
		}
	}
	total := uint32(0)
	for _, weighted := range from.GetBackends() {
		total += weighted.GetWeight()
		rule.Backends = append(rule.Backends, c.backend(weighted, backends[weighted.GetBackend()]))
	}
	if total == 0 {
		rule.Answer = "500"
	}
	return rule
}

// backend converts a backend of a rule; wire is nil if the reference is invalid.
func (c *Compiled) backend(from *resource.WeightedBackend, wire *resource.Backend) Backend {
	backend := Backend{Weight: int64(from.GetWeight()), Refused: wire == nil || wire.GetRefuse(), Endpoints: []string{}}
	if wire == nil {
		return backend
	}
	port, ok := servicePort(from.GetBackend())
	if !ok {
		return backend
	}
	backend.Namespace, backend.Name, backend.Port = port.Namespace, port.Name, port.Port
	backend.Endpoints = open(c.endpointsOf(port))
	if wire.GetTls() != nil {
		backend.TLS = wire.GetTls().GetHostname()
	}
	return backend
}

// servicePort parses the name of a Backend resource: backend/NAMESPACE/NAME/PORT, followed by the protocol.
func servicePort(name string) (model.ServicePort, bool) {
	parts := strings.Split(name, "/")
	if len(parts) < 4 || parts[0] != "backend" {
		return model.ServicePort{}, false
	}
	port, err := strconv.ParseInt(parts[3], 10, 32)
	return model.ServicePort{Namespace: parts[1], Name: parts[2], Port: int32(port)}, err == nil
}

// kinds maps the first part of a rule's name to the kind of its route.
var kinds = map[string]string{
	"ingress": "Ingress", "httproute": "HTTPRoute", "grpcroute": "GRPCRoute", "tlsroute": "TLSRoute",
}

// routeOf parses the name of a rule: httproute/NAMESPACE/NAME/RULE, or ingressclass/NAME/default.
func routeOf(name string) (Name, string) {
	parts := strings.Split(name, "/")
	if parts[0] == "ingressclass" && len(parts) > 1 {
		return Name{Kind: "IngressClass", Name: parts[1]}, strings.Join(parts[2:], "/")
	}
	if kind := kinds[parts[0]]; kind != "" && len(parts) > 2 {
		return Name{kind, parts[1], parts[2]}, strings.Join(parts[3:], "/")
	}
	return Name{Name: name}, ""
}

func matchText(match *resource.Match) string {
	var parts []string
	if method := match.GetMethod(); method != "" {
		parts = append(parts, method)
	}
	if path := match.GetPath(); path != nil {
		text := path.GetValue()
		switch path.GetKind() {
		case resource.PathMatch_EXACT:
			text = "= " + text
		case resource.PathMatch_REGULAR_EXPRESSION:
			text = "~ " + text
		default:
			if text == "" {
				text = "/"
			}
		}
		parts = append(parts, text)
	}
	values := func(kind string, list []*resource.ValueMatch) {
		for _, value := range list {
			sign := "="
			if value.GetRegularExpression() {
				sign = "~"
			}
			parts = append(parts, kind+" "+value.GetName()+sign+value.GetValue())
		}
	}
	values("header", match.GetHeaders())
	values("parameter", match.GetQueryParameters())
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

func filtersText(filters []*resource.Filter) []string {
	var found []string
	for _, filter := range filters {
		text := ""
		switch kind := filter.GetKind().(type) {
		case *resource.Filter_RequestHeaders:
			text = "request headers"
		case *resource.Filter_ResponseHeaders:
			text = "response headers"
		case *resource.Filter_Redirect:
			text = redirectText(kind.Redirect)
		case *resource.Filter_Rewrite:
			text = "rewrite"
		case *resource.Filter_Mirror:
			text = "mirror to " + strings.TrimPrefix(kind.Mirror.GetBackend(), "backend/")
		case *resource.Filter_Cors:
			text = "CORS"
		}
		if !slices.Contains(found, text) {
			found = append(found, text)
		}
	}
	return found
}

func redirectText(redirect *resource.Redirect) string {
	status := redirect.GetStatus()
	if status == 0 {
		// The default status of a redirect.
		status = 302
	}
	text := fmt.Sprintf("redirect %d", status)
	if redirect.GetScheme() != "" {
		text += " to " + redirect.GetScheme()
	}
	if redirect.GetHostname() != "" {
		text += " to " + redirect.GetHostname()
	}
	return text
}

func hostname(of *resource.Hostname) string {
	switch {
	case of.GetName() == "":
		return "*"
	case of.GetWildcard() != resource.Hostname_NONE:
		return "*." + of.GetName()
	}
	return of.GetName()
}

func protocolOf(of *resource.Listener) string {
	switch of.GetProtocol() {
	case resource.Listener_HTTP:
		return "HTTP"
	case resource.Listener_HTTPS:
		return "HTTPS"
	default:
		return "TLS"
	}
}

func portOf(of *resource.Listener) string {
	return fmt.Sprintf("%d/%s", of.GetPort(), protocolOf(of))
}
