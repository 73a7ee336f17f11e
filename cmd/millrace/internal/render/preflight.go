// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"slices"
	"strings"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// Preflight are the findings about the cluster and its nodes.
type Preflight struct {
	Cluster []consoleapi.Finding   `json:"cluster"`
	Nodes   []consoleapi.Preflight `json:"nodes"`
}

// Faults counts the findings that prevent Millrace from working.
func (p *Preflight) Faults() int { return p.count(consoleapi.LevelFault) }

func (p *Preflight) count(level consoleapi.Level) (count int) {
	for _, group := range p.groups() {
		if group.Level == level {
			count++
		}
	}
	return count
}

type finding struct {
	consoleapi.Finding
	nodes []string
}

// groups returns the findings, the most severe first, with equal findings of nodes merged.
func (p *Preflight) groups() (found []finding) {
	for _, each := range p.Cluster {
		found = append(found, finding{Finding: each})
	}
	for _, node := range p.Nodes {
		for _, each := range node.Findings {
			at := slices.IndexFunc(found, func(f finding) bool { return f.Finding == each && f.nodes != nil })
			if at < 0 {
				at, found = len(found), append(found, finding{Finding: each})
			}
			found[at].nodes = append(found[at].nodes, node.Node)
		}
	}
	order := []consoleapi.Level{consoleapi.LevelFault, consoleapi.LevelWarning, consoleapi.LevelOK}
	slices.SortStableFunc(found, func(a, b finding) int { return slices.Index(order, a.Level) - slices.Index(order, b.Level) })
	return found
}

// Write writes a line for each finding, with its text below.
func (p *Preflight) Write(out io.Writer, options Options) error {
	if options.Format == JSON {
		return encode(out, options.Format, p)
	}
	const indent = "  "
	var lines []string
	var fine []string
	for _, each := range p.groups() {
		if each.Level == consoleapi.LevelOK {
			if !slices.Contains(fine, each.Check) {
				fine = append(fine, each.Check)
			}
			continue
		}
		where := "cluster"
		if each.nodes != nil {
			where = p.nodeSummary(each.nodes)
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s", each.Level, each.Check, where))
		width := options.width()
		if width > 0 {
			width = max(width-len(indent), 40)
		}
		for _, line := range wrap(each.Message, width) {
			lines = append(lines, indent+line)
		}
	}
	slices.Sort(fine)
	if len(fine) > 0 {
		lines = append(lines, wrap("OK: "+strings.Join(fine, ", "), options.width())...)
	}
	lines = append(lines, fmt.Sprintf("%d nodes: %s, %s.", len(p.Nodes), plural(p.Faults(), "fault"), plural(p.count(consoleapi.LevelWarning), "warning")))
	_, err := io.WriteString(out, strings.Join(lines, "\n")+"\n")
	return err
}

func (p *Preflight) nodeSummary(nodes []string) string {
	const most = 6
	switch {
	case len(nodes) == len(p.Nodes) && len(nodes) > 1:
		return fmt.Sprintf("all %d nodes", len(nodes))
	case len(nodes) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(nodes[:most], ", "), len(nodes)-most)
	}
	return strings.Join(nodes, ", ")
}

func plural(count int, word string) string {
	if count == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", count, word)
}
