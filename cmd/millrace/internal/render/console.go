// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// DropCounters returns lines about the drops, the most frequent reason first.
func DropCounters(nodes []consoleapi.Drops, width int) []string {
	t := &table{columns: []column{{heading: "REASON"}, {heading: "PACKETS"}, {heading: "NODES", cut: true}}}
	totals, details := map[string]uint64{}, map[string][]string{}
	var unsampled uint64
	nodes = slices.SortedFunc(slices.Values(nodes), func(a, b consoleapi.Drops) int { return report.CompareNames(a.Node, b.Node) })
	for _, node := range nodes {
		unsampled += node.Skipped + node.Lost
		for reason, count := range node.Reasons {
			if count > 0 {
				totals[reason] += count
				details[reason] = append(details[reason], fmt.Sprintf("%s %d", node.Node, count))
			}
		}
	}
	if len(totals) == 0 {
		return []string{fmt.Sprintf("No drops on %s since the counters were created.", count(len(nodes), "node"))}
	}
	reasons := slices.SortedFunc(maps.Keys(totals), func(a, b string) int {
		return cmp.Or(cmp.Compare(totals[b], totals[a]), cmp.Compare(a, b))
	})
	for _, reason := range reasons {
		t.rows = append(t.rows, []string{reason, fmt.Sprint(totals[reason]), strings.Join(details[reason], ", ")})
	}
	lines := append([]string{"Drops since the counters were created:"}, t.lines(width)...)
	if unsampled > 0 {
		lines = append(lines, fmt.Sprintf("%d of them were not sampled.", unsampled))
	}
	return lines
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Widths of a sample's columns in characters, which do not depend on cells, because samples arrive one by
// one. On narrow terminals the destination alone identifies the Service.
var (
	dropWidths       = []int{12, 10, 18, 24, 24, 5}
	narrowDropWidths = []int{8, 8, 14, 21, 21, omitted, omitted}
)

// wideDrops is the minimum width of samples with all columns.
const wideDrops = 115

func isNarrow(width int) bool { return width > 0 && width < wideDrops }

func dropLine(cells []string, width int) string {
	if isNarrow(width) {
		return line(cells, narrowDropWidths)
	}
	last := cells[len(cells)-1]
	room := len(last)
	if width > 0 {
		room = width - total(dropWidths) - 2
	}
	return line(cells, append(slices.Clone(dropWidths), room))
}

// DropHeading returns the heading of lines of Drop, in at most width characters; 0: unlimited.
func DropHeading(width int) string {
	return dropLine([]string{"TIME", "NODE", "REASON", "SOURCE", "DESTINATION", "PROTO", "SERVICE"}, width)
}

// Drop returns the line of a dropped packet, with its time in the local zone.
func Drop(drop *consoleapi.Drop, width int) string {
	clock := "15:04:05.000"
	if isNarrow(width) {
		clock = "15:04:05"
	}
	return dropLine([]string{
		drop.Time.Local().Format(clock), drop.Node, drop.Reason,
		endpoint(drop.Source), endpoint(drop.Destination), drop.Protocol, orNone(drop.Service),
	}, width)
}

// endpoint leaves out port 0, which stands for protocols without ports.
func endpoint(at netip.AddrPort) string {
	if at.Port() == 0 {
		return at.Addr().String()
	}
	return at.String()
}

// Rates returns a table of the frontends, the busiest first, in at most height lines; 0: unlimited.
func Rates(rates report.Rates, width, height int) []string {
	t := &table{columns: []column{
		{heading: "VIP"}, {heading: "PROTO"}, {heading: "SERVICE", cut: true},
		{heading: "PACKETS/S"}, {heading: "BITS/S"}, {heading: "NEW CONN/S"}, {heading: "DROPS/S"},
	}}
	for _, f := range rates.Frontends {
		t.rows = append(t.rows, []string{
			netip.AddrPortFrom(f.VIP, f.Port).String(), f.Protocol, orNone(f.Service),
			number(f.Packets), number(f.Bits), number(f.Connections), number(f.Drops),
		})
	}
	head := fmt.Sprintf("%s, %s, over %.3g s, drops: %s",
		count(rates.Nodes, "node"), count(len(rates.Frontends), "frontend"), rates.Window, reasons(rates.Drops))
	lines := []string{cut(head, cmp.Or(width, len(head)))}
	for _, uplink := range rates.Uplinks {
		line := fmt.Sprintf("%s: the driver of %s rejects frames: transmit %s/s, redirect %s/s",
			uplink.Node, uplink.Interface, number(uplink.Transmit), number(uplink.Redirect))
		lines = append(lines, cut(line, cmp.Or(width, len(line))))
	}
	lines = append(lines, t.lines(width)...)
	if height > 0 && len(lines) > height {
		left := len(lines) - height + 1
		lines = append(lines[:height-1], fmt.Sprintf("… and %d more", left))
	}
	return lines
}

func reasons(drops map[string]float64) string {
	if len(drops) == 0 {
		return "none"
	}
	names := slices.SortedFunc(maps.Keys(drops), func(a, b string) int {
		return cmp.Or(cmp.Compare(drops[b], drops[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %s/s", name, number(drops[name])))
	}
	return strings.Join(parts, ", ")
}

// number returns three significant digits with a decimal prefix.
func number(value float64) string {
	for _, unit := range []string{"", "k", "M", "G", "T"} {
		switch {
		case value == 0:
			return "0"
		case value < 9.995:
			return fmt.Sprintf("%.2f%s", value, unit)
		case value < 99.95:
			return fmt.Sprintf("%.1f%s", value, unit)
		case value < 999.5:
			return fmt.Sprintf("%.0f%s", value, unit)
		}
		value /= 1000
	}
	return fmt.Sprintf("%.0fP", value)
}

// Hop returns a packet's steps on one node; pod is the name of the endpoint's pod, if known.
func Hop(trace *consoleapi.Trace, pod string) []string {
	const nameWidth = 11
	lines := []string{fmt.Sprintf("%s, in by %s", trace.Node, trace.Interface)}
	for _, step := range trace.Steps {
		text := step.Text
		if step.Name == "endpoint" && pod != "" {
			text += ", pod " + pod
		}
		lines = append(lines, fmt.Sprintf("  %-*s  %s", nameWidth, step.Name, text))
	}
	return lines
}
