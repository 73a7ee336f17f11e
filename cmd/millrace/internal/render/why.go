// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/timeline"
)

// Why is the history of a Service.
type Why struct {
	Service string    `json:"service"`
	At      time.Time `json:"at"`
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	// Nodes are the nodes that answered, Late those whose history starts after From.
	Nodes []string        `json:"nodes"`
	Late  []Late          `json:"late,omitempty"`
	Lines []timeline.Line `json:"lines"`
}

// Late is a node whose history starts at Since; zero if it is empty.
type Late struct {
	Node  string    `json:"node"`
	Since time.Time `json:"since,omitzero"`
}

// Timeline writes the history of a Service. Times in text are in the time zone of At.
func Timeline(out io.Writer, why Why, options Options) error {
	if options.Format.Structured() {
		return encode(out, options.Format, why)
	}
	clock := func(at time.Time, form string) string { return at.In(why.At.Location()).Format(form) }
	var text strings.Builder
	fmt.Fprintf(&text, "%s from %s to %s\n", why.Service, clock(why.From, "2 Jan 2006 15:04:05"), clock(why.To, "2 Jan 15:04:05 MST"))
	for _, late := range why.Late {
		since := "nothing yet"
		if !late.Since.IsZero() {
			since = "only since " + clock(late.Since, "2 Jan 15:04:05")
		}
		fmt.Fprintf(&text, "%s recorded %s.\n", late.Node, since)
	}
	text.WriteString("\n")
	if len(why.Lines) == 0 {
		text.WriteString("No events in this period: no packet of the Service was dropped, and no dependency changed.\n")
		_, err := io.WriteString(out, text.String())
		return err
	}
	t := &table{columns: []column{{heading: "TIME"}, {heading: "NODE", cut: true}, {heading: "WHAT", cut: true}}}
	for _, line := range why.Lines {
		what := line.Text
		if line.Count > 0 {
			what = fmt.Sprintf("%d packets dropped: %s", line.Count, line.Text)
		}
		t.rows = append(t.rows, []string{clock(line.Time, "15:04:05.000"), whereOf(line.Nodes, len(why.Nodes)), what})
	}
	text.WriteString(strings.Join(t.lines(options.width()), "\n") + "\n")
	_, err := io.WriteString(out, text.String())
	return err
}

func whereOf(nodes []string, all int) string {
	switch {
	case len(nodes) == 0:
		return "event"
	case len(nodes) == all && all > 1:
		return fmt.Sprintf("all %d nodes", all)
	case len(nodes) <= 3:
		return strings.Join(nodes, ",")
	default:
		return fmt.Sprintf("%d nodes", len(nodes))
	}
}
