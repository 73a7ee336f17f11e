// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
)

// Maximum rows of Routes in text; a gateway may have 5,000 routes.
const (
	screenRules         = 100
	screenRouteProblems = 20
)

// Routes writes listeners, rules with their backends, and rejected objects.
func Routes(out io.Writer, view *routing.View, options Options) error {
	if options.Format.Structured() {
		return encode(out, options.Format, view)
	}
	var text strings.Builder
	left := screenRules
	if options.Format == Wide {
		left = -1
	}
	hidden := 0
	for i := range view.Owners {
		if i > 0 {
			text.WriteString("\n")
		}
		hidden += owner(&text, &view.Owners[i], &left, options)
	}
	more(&text, hidden, "millrace routes HOST, -n NAMESPACE, -o wide")
	if len(view.Owners) == 0 {
		text.WriteString("No routes.\n")
	}
	if len(view.Problems) > 0 {
		shown := view.Problems
		if options.Format == Text {
			shown = shown[:min(len(shown), screenRouteProblems)]
		}
		section(&text, colour("Rejected", red, options.Colour), refusals(shown, options.width()))
		more(&text, len(view.Problems)-len(shown), "millrace routes -o wide")
	}
	if len(view.Remarks) > 0 {
		section(&text, "Remarks", listLines(view.Remarks, options.width()))
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// owner writes at most left rows, unless negative, and returns the number of omitted rows.
func owner(text *strings.Builder, of *routing.Owner, left *int, options Options) (hidden int) {
	where := "no VIP yet"
	if len(of.VIPs) > 0 {
		where = strings.Join(of.VIPs, ", ")
	}
	if of.Assumed {
		where = "you may not read it"
	}
	fmt.Fprintf(text, "%s: %s", of.Name, where)
	if hasProxies(of) {
		ready := "no proxy"
		if of.ReadyProxies == 1 {
			ready = "1 proxy"
		} else if of.ReadyProxies > 1 {
			ready = fmt.Sprintf("%d proxies", of.ReadyProxies)
		}
		fmt.Fprintf(text, ", %s ready", ready)
	}
	text.WriteString("\n")
	rows := ruleRows(of.Rules, options.Format == Wide)
	if *left >= 0 && len(rows) > *left {
		hidden = len(rows) - *left
		rows = rows[:*left]
	}
	if *left >= 0 {
		*left -= len(rows)
	}
	if len(rows) == 0 && hidden == 0 {
		text.WriteString("no routes yet\n")
		return 0
	}
	t := &table{columns: []column{
		{heading: "LISTENS"}, {heading: "HOST", cut: true}, {heading: "MATCH", cut: true},
		{heading: "ROUTE", cut: true}, {heading: "LEADS TO", cut: true}, {heading: "WEIGHT", optional: true}, {heading: "READY"},
	}, rows: rows}
	if options.Format == Wide {
		t.columns = append(t.columns, column{heading: "RULE"}, column{heading: "FILTERS"}, column{heading: "TLS"}, column{heading: "ENDPOINTS"})
	}
	if len(rows) > 0 {
		for _, line := range t.lines(options.width()) {
			text.WriteString(line + "\n")
		}
	}
	return hidden
}

// hasProxies reports whether an owner has listeners that need proxies.
func hasProxies(of *routing.Owner) bool {
	for _, listener := range of.Listeners {
		if listener.Protocol != "TCP" && listener.Protocol != "UDP" {
			return true
		}
	}
	return false
}

func ruleRows(rules []routing.Rule, wide bool) [][]string {
	var rows [][]string
	for i := range rules {
		rule := &rules[i]
		row := func(leads, weight, ready, with, endpoints string) {
			cells := []string{strings.Join(rule.Ports, ","), rule.Hostname, rule.Match, rule.Route.String(), leads, weight, ready}
			if wide {
				cells = append(cells, orNone(rule.Rule), orNone(strings.Join(rule.Filters, "; ")), with, endpoints)
			}
			rows = append(rows, cells)
		}
		if rule.Answer != "" || len(rule.Backends) == 0 {
			row("("+rule.Answer+")", none, none, none, none)
			continue
		}
		for _, backend := range rule.Backends {
			leads, ready := backend.Service(), strconv.Itoa(len(backend.Endpoints))
			if backend.Name != "" {
				leads += ":" + strconv.Itoa(int(backend.Port))
			}
			if backend.Refused {
				ready = "refused"
			}
			row(leads, strconv.FormatInt(backend.Weight, 10), ready, orNone(backend.TLS), orNone(strings.Join(backend.Endpoints, ",")))
		}
	}
	return rows
}

func refusals(problems []routing.Problem, width int) []string {
	var lines []string
	for _, problem := range problems {
		head := problem.Object.String()
		if problem.Part != "" {
			head += ", " + problem.Part
		}
		lines = append(lines, head+"  "+problem.Reason)
		for _, part := range wrap(problem.Message, max(width-4, 0)) {
			if part != "" {
				lines = append(lines, "    "+part)
			}
		}
	}
	return lines
}
