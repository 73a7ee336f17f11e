// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// none stands in an empty cell, so that columns can be told apart by a script.
const none = "-"

// vipTable has a row for each Service of each VIP.
func vipTable(vips []report.VIP, nodes int, format Format) *table {
	t := &table{columns: []column{
		{heading: "ADDRESS"}, {heading: "SERVICE", cut: true}, {heading: "POOL", cut: true},
		{heading: "POLICY"}, {heading: "READY"}, {heading: "ANNOUNCED BY", cut: true},
	}}
	if format == Wide {
		t.columns = append(t.columns, column{heading: "PROGRAMMED"}, column{heading: "WITHHELD BY"}, column{heading: "PORTS"})
	}
	for _, vip := range vips {
		announced := announcers(vip.AnnouncedBy, nodes, 3)
		if format == Wide {
			announced = announcers(vip.AnnouncedBy, 0, len(vip.AnnouncedBy))
		}
		for _, cells := range serviceCells(vip.Services) {
			row := []string{vip.Address, cells.name, orNone(vip.Pool), cells.policy, cells.ready, announced}
			if format == Wide {
				row = append(row, fmt.Sprintf("%d/%d", vip.Programmed, nodes), withholders(vip.WithheldBy), cells.ports)
			}
			t.rows = append(t.rows, row)
		}
	}
	return t
}

// cells are what a row says of a Service.
type cells struct{ name, policy, ready, ports string }

// serviceCells returns the cells of each Service of a VIP, at least one row.
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
		rows = append(rows, row)
	}
	return rows
}

// announcers writes nodes with the same peers together: "node1,node2 to
// router1". More than few of them are a number; all nodes of the cluster are
// "all 3 nodes", where nodes is their number and not 0.
func announcers(list []report.Announcement, nodes, few int) string {
	var order []string
	groups := map[string][]string{}
	for _, announcement := range list {
		peers := strings.Join(announcement.Peers, ",")
		if groups[peers] == nil {
			order = append(order, peers)
		}
		groups[peers] = append(groups[peers], announcement.Node)
	}
	var parts []string
	for _, peers := range order {
		group := groups[peers]
		who := strings.Join(group, ",")
		switch {
		case nodes > 1 && len(group) == nodes:
			who = fmt.Sprintf("all %d nodes", nodes)
		case len(group) > few:
			who = fmt.Sprintf("%d of %d nodes", len(group), nodes)
		}
		parts = append(parts, who+" to "+peers)
	}
	return orNone(strings.Join(parts, "; "))
}

func withholders(list []report.Withheld) string {
	var parts []string
	for _, withheld := range list {
		part := withheld.Node
		if withheld.Reason != "" {
			part += " (" + withheld.Reason + ")"
		}
		parts = append(parts, part)
	}
	return orNone(strings.Join(parts, ","))
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
		row := []string{
			node.Name, node.Ready, node.Agent,
			fmt.Sprintf("%d/%d", node.Established(), len(node.Sessions)),
			fmt.Sprintf("%d/%d", node.Announced, node.Programmed),
			interfaces(node.Interfaces), orNone(node.Version),
		}
		if format == Wide {
			row = append(row, strconv.Itoa(int(node.ID)), orNone(node.Zone), orNone(strings.Join(node.Addresses, ",")), sessions(node.Sessions))
		}
		t.rows = append(t.rows, row)
	}
	return t
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

// problemLines writes each problem with its message wrapped below its object.
func problemLines(problems []report.Problem, width int) []string {
	var lines []string
	for _, problem := range problems {
		lines = append(lines, problem.Object()+"  "+problem.Reason)
		for _, part := range wrap(problem.Message, max(width-4, 0)) {
			if part != "" {
				lines = append(lines, "    "+part)
			}
		}
	}
	return lines
}

func nextLines(steps []string, width int) []string {
	var lines []string
	for _, step := range steps {
		for i, part := range wrap(step, max(width-2, 0)) {
			if i == 0 {
				lines = append(lines, "- "+part)
			} else {
				lines = append(lines, "  "+part)
			}
		}
	}
	return lines
}

// summary is the report in one line.
func summary(view *report.View) string {
	ready, established, sessions, announced, inUse := 0, 0, 0, 0, 0
	for _, node := range view.Nodes {
		if node.Ready == "True" && node.Agent == report.AgentReady {
			ready++
		}
		established += node.Established()
		sessions += len(node.Sessions)
	}
	for _, vip := range view.VIPs {
		if vip.InUse() {
			inUse++
		}
		if len(vip.AnnouncedBy) > 0 {
			announced++
		}
	}
	return fmt.Sprintf("%d of %d VIPs announced, %d of %d nodes ready, %d of %d BGP sessions established",
		announced, inUse, ready, len(view.Nodes), established, sessions)
}

func orNone(text string) string {
	if text == "" {
		return none
	}
	return text
}
