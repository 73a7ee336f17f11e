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
	Nodes []string `json:"nodes"`
	Late  []Late   `json:"late,omitempty"`
	// Omitted are sources that the user may not read.
	Omitted []string         `json:"omitted,omitempty"`
	Verdict timeline.Verdict `json:"verdict"`
	Lines   []timeline.Line  `json:"lines"`
	// All disables the limit of lines in text.
	All bool `json:"-"`
}

// screenLines limits the lines of a history in text.
const screenLines = 15

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
	for _, part := range wrap(why.Service+": "+why.Verdict.Text, options.width()) {
		text.WriteString(part + "\n")
	}
	fmt.Fprintf(&text, "\nFrom %s to %s\n", clock(why.From, "2 Jan 2006 15:04:05"), clock(why.To, "2 Jan 15:04:05 MST"))
	for _, late := range why.Late {
		since := "nothing yet"
		if !late.Since.IsZero() {
			since = "only since " + clock(late.Since, "2 Jan 15:04:05")
		}
		fmt.Fprintf(&text, "%s recorded %s.\n", late.Node, since)
	}
	if len(why.Omitted) > 0 {
		for _, part := range wrap("Left out: "+strings.Join(why.Omitted, "; ")+".", options.width()) {
			text.WriteString(part + "\n")
		}
	}
	if len(why.Lines) == 0 {
		_, err := io.WriteString(out, text.String())
		return err
	}
	t := &table{columns: []column{{heading: "TIME"}, {heading: "NODE", cut: true}, {heading: "WHAT", cut: true}}}
	text.WriteString("\n")
	shown := why.Lines
	if !why.All {
		shown = timeline.Closest(shown, screenLines, why.pivot())
	}
	for _, line := range shown {
		what := line.Text
		if line.Count > 0 {
			what = fmt.Sprintf("%d packets dropped: %s", line.Count, line.Text)
		}
		t.rows = append(t.rows, []string{clock(line.Time, "15:04:05.000"), nodeSummary(line.Nodes, len(why.Nodes)), what})
	}
	text.WriteString(strings.Join(t.lines(options.width()), "\n") + "\n")
	more(&text, len(why.Lines)-len(shown), "millrace why --all")
	_, err := io.WriteString(out, text.String())
	return err
}

// pivot is the start of the failure, or else the requested time.
func (w *Why) pivot() time.Time {
	if w.Verdict.From.IsZero() {
		return w.At
	}
	return w.Verdict.From
}

func nodeSummary(nodes []string, all int) string {
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
