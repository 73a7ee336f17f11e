// SPDX-License-Identifier: Apache-2.0

package routetest

import (
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Request is a request for Match.
type Request struct {
	// Port is the port of the VIP, and ServerName the server name of the TLS handshake.
	Port       uint32
	ServerName string
	Host       string
	Method     string
	Path       string
	Header     map[string]string
	Query      url.Values
}

// Answer is the result of Match.
type Answer struct {
	Listener string
	// Misdirected is true if another listener than that of the server name serves the host.
	Misdirected bool
	Rule        *resource.Rule
}

// Match returns the first rule that matches in the most specific listener and group of the port.
func Match(resources []*resource.Resource, request Request) Answer {
	listener := matchListener(resources, request.Port, request.Host)
	if listener == nil {
		return Answer{}
	}
	answer := Answer{Listener: listener.Name}
	switch listener.GetListener().Protocol {
	case resource.Listener_HTTPS:
		shaken := matchListener(resources, request.Port, request.ServerName)
		if shaken == nil {
			return Answer{}
		}
		if shaken.Name != listener.Name && !listener.GetListener().AnyServerName {
			answer.Misdirected = true
			return answer
		}
	}
	var best *resource.RouteGroup
	for _, found := range resources {
		group := found.GetRouteGroup()
		if group == nil || !slices.Contains(group.Listeners, listener.Name) || !matchHost(group.Hostname, request.Host) {
			continue
		}
		if best == nil || specific(group.Hostname) > specific(best.Hostname) {
			best = group
		}
	}
	for _, rule := range best.GetRules() {
		if matchRule(rule.Match, request) {
			answer.Rule = rule
			return answer
		}
	}
	return answer
}

func matchListener(resources []*resource.Resource, port uint32, host string) *resource.Resource {
	var best *resource.Resource
	for _, found := range resources {
		listener := found.GetListener()
		if listener == nil || listener.Port != port || !matchHost(listener.Hostname, host) {
			continue
		}
		if best == nil || specific(listener.Hostname) > specific(best.GetListener().Hostname) {
			best = found
		}
	}
	return best
}

// specific returns the precedence of a host name. The largest takes precedence.
func specific(name *resource.Hostname) int {
	switch {
	case name.GetName() == "":
		return 0
	case name.Wildcard != resource.Hostname_NONE:
		return 1 + len(name.Name)
	}
	return 1000 + len(name.Name)
}

func matchHost(name *resource.Hostname, host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if name.GetName() == "" {
		return true
	}
	prefix, wild := strings.CutSuffix(host, "."+name.Name)
	switch name.Wildcard {
	case resource.Hostname_ONE_LABEL:
		return wild && prefix != "" && !strings.Contains(prefix, ".")
	case resource.Hostname_LABELS:
		return wild && prefix != ""
	}
	return host == name.Name
}

func matchRule(match *resource.Match, request Request) bool {
	if match.GetMethod() != "" && match.Method != request.Method {
		return false
	}
	if match.GetPath() != nil && !matchPath(match.Path, request.Path) {
		return false
	}
	for _, header := range match.GetHeaders() {
		value, found := request.Header[header.Name]
		if !found || !matchValue(header, value) {
			return false
		}
	}
	for _, parameter := range match.GetQueryParameters() {
		values := request.Query[parameter.Name]
		if len(values) == 0 || !matchValue(parameter, values[0]) {
			return false
		}
	}
	return true
}

func matchPath(match *resource.PathMatch, path string) bool {
	if match.Kind == resource.PathMatch_REGULAR_EXPRESSION {
		return whole(match.Value, path)
	}
	value, err := url.PathUnescape(match.Value)
	if err != nil {
		return false
	}
	if match.Kind == resource.PathMatch_EXACT {
		return path == value
	}
	rest, found := strings.CutPrefix(path, strings.TrimRight(value, "/"))
	return found && (rest == "" || rest[0] == '/')
}

func matchValue(match *resource.ValueMatch, value string) bool {
	if match.RegularExpression {
		return whole(match.Value, value)
	}
	return match.Value == value
}

func whole(expression, text string) bool {
	return regexp.MustCompile(`\A(?:` + expression + `)\z`).MatchString(text)
}
