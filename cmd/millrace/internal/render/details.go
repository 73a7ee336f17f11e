// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// VIPDetails writes Services, decisions of nodes and problems of each VIP; only Text differs from VIPs.
func VIPDetails(out io.Writer, view *report.View, options Options) error {
	if options.Format != Text {
		return VIPs(out, view, options)
	}
	var text strings.Builder
	for _, problem := range view.Unassigned {
		fmt.Fprintf(&text, "Service %s/%s has no VIP: %s\n", problem.Namespace, problem.Name, problem.Reason)
		for _, part := range wrap(problem.Message, max(options.width()-4, 0)) {
			text.WriteString("    " + part + "\n")
		}
	}
	for i := range view.VIPs {
		if i > 0 || len(view.Unassigned) > 0 {
			text.WriteString("\n")
		}
		vipDetails(&text, view, &view.VIPs[i], options)
	}
	for _, line := range remarkLines(view, options.width()) {
		text.WriteString(line + "\n")
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func vipDetails(text *strings.Builder, view *report.View, vip *report.VIP, options Options) {
	width := options.width()
	text.WriteString(vip.Address)
	if vip.Pool != "" {
		text.WriteString(" of VIPPool " + vip.Pool)
	}
	text.WriteString("\n")
	services := &table{columns: []column{{heading: "SERVICE", cut: true}, {heading: "POLICY"}, {heading: "READY"}, {heading: "PORTS", cut: true}}}
	for _, cells := range serviceCells(vip.Services) {
		services.rows = append(services.rows, []string{cells.name, cells.policy, cells.ready, cells.ports})
	}
	section(text, "Services", services.lines(width))
	if routes := routeTable(vip.Services); len(routes.rows) > 0 {
		section(text, "Routes", routes.lines(width))
	}
	if nodes := nodeDecisions(view, vip); len(nodes.rows) > 0 {
		section(text, "Nodes", append(nodes.lines(width), reasonLines(vip.WithheldBy, width)...))
	}
	problems := slices.DeleteFunc(slices.Clone(view.Problems), func(problem report.Problem) bool { return !about(problem, vip) })
	if len(problems) > 0 {
		section(text, colour("Problems", red, options.Colour), problemLines(report.Causes(problems), width))
	}
}

func routeTable(services []report.Service) *table {
	t := &table{columns: []column{{heading: "PORT"}, {heading: "LEADS TO", cut: true}, {heading: "WEIGHT"}, {heading: "READY"}}}
	for _, service := range services {
		for _, backend := range service.Backends {
			name, ready := "(invalid)", fmt.Sprintf("%d/%d", backend.Ready, backend.Total)
			if backend.Name != "" {
				name = backend.Namespace + "/" + backend.Name
			}
			if backend.Refused {
				ready += ", refused"
			}
			t.rows = append(t.rows, []string{backend.Port, name, fmt.Sprint(backend.Weight), ready})
		}
	}
	return t
}

func nodeDecisions(view *report.View, vip *report.VIP) *table {
	type decision struct{ peers, reason string }
	decisions := map[string]decision{}
	for _, announcement := range vip.AnnouncedBy {
		for _, node := range announcement.Nodes {
			decisions[node] = decision{peers: strings.Join(announcement.Peers, ",")}
		}
	}
	for _, withheld := range vip.WithheldBy {
		for _, node := range withheld.Nodes {
			decisions[node] = decision{reason: withheld.Reason}
		}
	}
	t := &table{columns: []column{{heading: "NODE", cut: true}, {heading: "ANNOUNCES TO", cut: true}, {heading: "REASON"}}}
	for _, node := range view.Nodes {
		if d, isReported := decisions[node.Name]; isReported {
			t.rows = append(t.rows, []string{node.Name, orNone(d.peers), orNone(d.reason)})
		}
	}
	return t
}

func reasonLines(list []report.Withheld, width int) []string {
	var lines []string
	for _, withheld := range list {
		if withheld.Message == "" {
			continue
		}
		lines = append(lines, wrap(withheld.Reason+" on "+strings.Join(withheld.Nodes, ", "), width)...)
		for _, part := range wrap(withheld.Message, max(width-4, 0)) {
			lines = append(lines, "    "+part)
		}
	}
	return lines
}

// about reports whether a problem belongs to a VIP or to one of its Services.
func about(problem report.Problem, vip *report.VIP) bool {
	if problem.Kind == "VIP" {
		return problem.Name == vip.Address
	}
	return problem.Kind == "Service" && slices.ContainsFunc(vip.Services, func(service report.Service) bool {
		return service.Namespace == problem.Namespace && service.Name == problem.Name
	})
}
