// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// none is the text of an empty cell, so that scripts can split columns.
const none = "-"

// unknown fills a cell if no agent has answered.
const unknown = "?"

func vipTable(view *report.View, format Format) *table {
	nodes := len(view.Nodes)
	t := &table{columns: []column{
		{heading: "ADDRESS"}, {heading: "SERVICE", cut: true}, {heading: "POOL", cut: true},
		{heading: "POLICY"}, {heading: "READY"}, {heading: "ANNOUNCED BY", cut: true},
	}}
	if format == Wide {
		t.columns = append(t.columns, column{heading: "PROGRAMMED"}, column{heading: "WITHHELD BY"}, column{heading: "PORTS"})
	}
	for _, vip := range view.VIPs {
		announced, programmed, withheld := unknown, unknown, unknown
		if vip.NotAnnounced != "" {
			announced = none
		}
		if view.Answered > 0 {
			announced = announcers(vip.AnnouncedBy, nodes, 3)
			programmed, withheld = fmt.Sprintf("%d/%d", vip.Programmed, view.Answered), withholders(vip.WithheldBy)
			if format == Wide {
				announced = announcers(vip.AnnouncedBy, 0, nodes)
			}
		}
		for _, cells := range serviceCells(vip.Services) {
			row := []string{vip.Address, cells.name, orNone(vip.Pool), cells.policy, cells.ready, cmp.Or(cells.announced, announced)}
			if format == Wide {
				row = append(row, programmed, withheld, cells.ports)
			}
			t.rows = append(t.rows, row)
		}
	}
	return t
}

// cells are the cells of a Service.
// announced is empty if nodes are known by name.
type cells struct{ name, policy, ready, announced, ports string }

func serviceCells(services []report.Service) []cells {
	if len(services) == 0 {
		return []cells{{name: "(reserved)", policy: none, ready: none, ports: none}}
	}
	var rows []cells
	for _, service := range services {
		row := cells{name: service.Namespace + "/" + service.Name, policy: none, ready: none, ports: orNone(strings.Join(service.Ports, ","))}
		if service.TrafficPolicy != "" {
			row.policy, row.ready = service.TrafficPolicy, fmt.Sprintf("%d/%d", service.Ready, service.Total)
		}
		if service.Announcing != nil {
			row.announced = fmt.Sprintf("%d of %d nodes", *service.Announcing, service.Nodes)
		}
		rows = append(rows, row)
	}
	return rows
}

// announcers groups nodes by peers: "node1,node2 to router1". A group of more than few nodes is a number,
// and one of all nodes, if nodes is not 0, "all 3 nodes".
func announcers(list []report.Announcement, nodes, few int) string {
	var parts []string
	for _, announcement := range list {
		group := announcement.Nodes
		who := strings.Join(group, ",")
		switch {
		case nodes > 1 && len(group) == nodes:
			who = fmt.Sprintf("all %d nodes", nodes)
		case len(group) > few:
			who = fmt.Sprintf("%d of %d nodes", len(group), nodes)
		}
		parts = append(parts, who+" to "+strings.Join(announcement.Peers, ","))
	}
	return orNone(strings.Join(parts, "; "))
}

// withholders groups nodes by reason: "node1,node2 (NoEndpoints)".
func withholders(list []report.Withheld) string {
	var parts []string
	for _, withheld := range list {
		part := strings.Join(withheld.Nodes, ",")
		if withheld.Reason != "" {
			part += " (" + withheld.Reason + ")"
		}
		parts = append(parts, part)
	}
	return orNone(strings.Join(parts, "; "))
}

func nodeTable(nodes []report.Node, format Format) *table {
	t := &table{columns: []column{
		{heading: "NODE", cut: true}, {heading: "READY"}, {heading: "AGENT"}, {heading: "SESSIONS"},
		{heading: "VIPS"}, {heading: "XDP", cut: true}, {heading: "VERSION", cut: true},
	}}
	if format == Wide {
		t.columns = append(t.columns, column{heading: "ID"}, column{heading: "ZONE"}, column{heading: "ADDRESSES"}, column{heading: "PEERS"})
	}
	for _, node := range nodes {
		established, announced := strconv.Itoa(node.Established()), strconv.Itoa(node.Announced)
		if isStale(&node) {
			established, announced = unknown, unknown
		}
		row := []string{
			node.Name, readiness(&node), node.Agent,
			fmt.Sprintf("%s/%d", established, len(node.Sessions)),
			fmt.Sprintf("%s/%d", announced, node.Programmed),
			interfaces(node.Interfaces), orNone(node.Version),
		}
		if format == Wide {
			row = append(row, strconv.Itoa(int(node.ID)), orNone(node.Zone), orNone(strings.Join(node.Addresses, ",")), sessions(node.Sessions))
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// readiness is the condition Ready with the reason why the node withdraws its routes.
func readiness(node *report.Node) string {
	if node.DrainReason == "" {
		return node.Ready
	}
	return node.Ready + "," + node.DrainReason
}

func interfaces(list []report.Interface) string {
	var parts []string
	for _, uplink := range list {
		parts = append(parts, uplink.Name+":"+uplink.XDPMode)
	}
	return orNone(strings.Join(parts, ","))
}

func sessions(list []report.Session) string {
	var parts []string
	for _, session := range list {
		parts = append(parts, session.Peer+":"+session.State)
	}
	return orNone(strings.Join(parts, ","))
}

// minObject is the minimum width of an object's name, in characters.
const minObject = 16

func problemLines(causes []report.Cause, width int) []string {
	var lines []string
	for _, problem := range causes {
		rest := "  " + problem.Reason
		if !problem.Since.IsZero() {
			rest += "  since " + problem.Since.UTC().Format(time.RFC3339)
		}
		object := problem.Object()
		if width > 0 {
			object = cut(object, max(width-utf8.RuneCountInString(rest), minObject))
		}
		lines = append(lines, object+rest)
		for _, part := range wrap(problem.Message, max(width-4, 0)) {
			if part != "" {
				lines = append(lines, "    "+part)
			}
		}
	}
	return lines
}

// Remarks returns the data that a list of VIPs lacks, with the reasons, and the Services without a VIP.
func Remarks(view *report.View) []string {
	remarks := missingData(view)
	for _, problem := range view.Unassigned {
		remarks = append(remarks, fmt.Sprintf("Service %s/%s has no VIP: %s: %s", problem.Namespace, problem.Name, problem.Reason, problem.Message))
	}
	return remarks
}

func missingData(view *report.View) []string {
	remarks := slices.Clone(view.Remarks)
	for _, problem := range view.Problems {
		if problem.Reason == report.ReasonAgentUnreachable {
			remarks = append(remarks, fmt.Sprintf("%s: %s", problem.Name, problem.Message))
		}
	}
	return remarks
}

func remarkLines(view *report.View, width int) []string {
	var lines []string
	for _, remark := range missingData(view) {
		lines = append(append(lines, ""), wrap(remark, width)...)
	}
	return lines
}

func listLines(items []string, width int) []string {
	var lines []string
	for _, item := range items {
		for i, part := range wrap(item, max(width-2, 0)) {
			if i == 0 {
				lines = append(lines, "- "+part)
			} else {
				lines = append(lines, "  "+part)
			}
		}
	}
	return lines
}

func summary(view *report.View) string {
	ready, departing, established, sessions, unsure, announced, inUse := 0, 0, 0, 0, 0, 0, 0
	for _, node := range view.Nodes {
		if node.DrainReason != "" {
			departing++
		}
		if node.Ready == "True" && node.Agent == report.AgentReady {
			ready++
		}
		sessions += len(node.Sessions)
		if isStale(&node) {
			unsure += len(node.Sessions)
			continue
		}
		established += node.Established()
	}
	for _, vip := range view.VIPs {
		if vip.InUse() {
			inUse++
		}
		if len(vip.AnnouncedBy) > 0 || slices.ContainsFunc(vip.Services, isAnnounced) {
			announced++
		}
	}
	vips := fmt.Sprintf("%d of %d VIPs announced", announced, inUse)
	if view.Sole != "" {
		return soleSummary(view, announced, inUse)
	}
	if view.Answered == 0 {
		vips = fmt.Sprintf("%s in use", count(inUse, "VIP"))
	}
	nodes := fmt.Sprintf("%d of %d nodes ready", ready, len(view.Nodes))
	if departing > 0 {
		nodes += fmt.Sprintf(" (%d drained)", departing)
	}
	text := fmt.Sprintf("%s, %s, %d of %d BGP sessions established", vips, nodes, established, sessions)
	if unsure > 0 {
		text += fmt.Sprintf(" (%d unknown)", unsure)
	}
	return text
}

// soleSummary is the summary of a namespace, without nodes.
func soleSummary(view *report.View, announced, inUse int) string {
	for _, vip := range view.VIPs {
		if slices.ContainsFunc(vip.Services, func(service report.Service) bool { return service.Announcing != nil }) {
			return fmt.Sprintf("%d of %d VIPs announced in namespace %s", announced, inUse, view.Sole)
		}
	}
	return fmt.Sprintf("%s in use in namespace %s", count(inUse, "VIP"), view.Sole)
}

func isAnnounced(service report.Service) bool {
	return service.Announcing != nil && *service.Announcing > 0
}

// isStale reports whether a node's report may be old, because no agent is known to run there.
func isStale(node *report.Node) bool { return node.Agent != report.AgentReady }

func orNone(text string) string {
	if text == "" {
		return none
	}
	return text
}
