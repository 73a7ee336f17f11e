// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
)

// Answer returns a request's steps through a proxy; pod is the name of the proxy's pod, if known.
func Answer(answer *routing.Result, pod string) []string {
	head := "proxy of " + answer.Owner.String()
	if pod != "" {
		head = "proxy " + pod + " of " + answer.Owner.String()
	}
	lines := []string{head}
	step := func(name, format string, arguments ...any) {
		lines = append(lines, strings.TrimRight(fmt.Sprintf("  %-11s  %s", name, fmt.Sprintf(format, arguments...)), " "))
	}
	if answer.Listener == nil {
		step("listener", "no listener for this host")
	} else {
		step("listener", "%d/%s for %s", answer.Listener.Port, answer.Listener.Protocol, hostText(answer.Listener.Hostname))
	}
	if answer.Rule == nil {
		step("verdict", "%s", verdict(answer))
		return lines
	}
	rule := answer.Rule
	text := "rule " + rule.Rule + " of " + rule.Route.String()
	step("route", "%s, for %s, match %s", text, hostText(rule.Hostname), rule.Match)
	if len(rule.Filters) > 0 {
		step("filters", "%s", strings.Join(rule.Filters, "; "))
	}
	total := int64(0)
	for _, backend := range rule.Backends {
		total += backend.Weight
	}
	for _, backend := range rule.Backends {
		step("backend", "%s", backendText(&backend, total, answer.Listener.Protocol == "TLS"))
	}
	step("verdict", "%s", verdict(answer))
	return lines
}

// backendText formats shares of connections, if bytes is true, or of requests.
func backendText(backend *routing.Backend, total int64, bytes bool) string {
	what := "requests"
	if bytes {
		what = "connections"
	}
	text := backend.Service()
	if backend.Name != "" {
		text = fmt.Sprintf("Service %s, port %d", text, backend.Port)
	}
	if backend.Weight != total {
		text += fmt.Sprintf(", %d of %d %s", backend.Weight, total, what)
	}
	if backend.TLS != "" {
		text += ", with TLS as " + backend.TLS
	}
	switch {
	case bytes && (backend.Refused || len(backend.Endpoints) == 0):
		return text + ": closed"
	case backend.Refused:
		return text + ": answered with 500"
	case len(backend.Endpoints) == 0:
		return text + ": no endpoint, answered with 503"
	}
	return text + ": " + strings.Join(backend.Endpoints, ", ")
}

func hostText(host string) string {
	if host == "*" {
		return "all hosts"
	}
	return host
}

func verdict(answer *routing.Result) string {
	switch {
	case answer.Location != "":
		return fmt.Sprintf("answered with %d %s to %s", answer.Status, http.StatusText(answer.Status), answer.Location)
	case answer.Status != 0:
		return fmt.Sprintf("answered with %d %s", answer.Status, http.StatusText(answer.Status))
	case answer.Rule == nil:
		return "the connection is closed"
	}
	endpoints := 0
	for _, backend := range answer.Rule.Backends {
		if !backend.Refused {
			endpoints += len(backend.Endpoints)
		}
	}
	switch endpoints {
	case 0:
		if answer.Listener.Protocol == "TLS" {
			return "the connection is closed"
		}
		return "answered with 503 Service Unavailable"
	case 1:
		return "sent to this endpoint"
	}
	return "sent to one of these endpoints: the less loaded of two random ones"
}
