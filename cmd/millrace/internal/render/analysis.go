// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"strings"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/analysis"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// Analysis writes the result of an analysis of manifests.
func Analysis(out io.Writer, view *analysis.View, options Options) error {
	if options.Format.Structured() {
		return encode(out, options.Format, view)
	}
	var text strings.Builder
	width := options.width()
	heading := counted(view.Objects, "object")
	if view.VIPs != nil {
		heading += ", " + counted(len(view.VIPs), "VIP")
	}
	heading += ", " + counted(len(view.Problems), "problem") + "."
	if len(view.Problems) > 0 {
		text.WriteString(colour(heading, red, options.Colour) + "\n")
	} else {
		text.WriteString(colour(heading, green, options.Colour) + "\n")
	}
	if len(view.VIPs) > 0 {
		section(&text, "VIPs", plannedVIPs(view.VIPs, options.Format).lines(width))
		if options.Format != Wide {
			more(&text, len(view.VIPs)-screenVIPs, "-o wide")
		}
	}
	source := ""
	for i, problem := range view.Problems {
		if i == 0 || problem.Source != source {
			source = problem.Source
			text.WriteString("\n" + source + "\n")
		}
		for _, line := range problemLines(report.Causes([]report.Problem{problem.Problem}), max(width-2, 0)) {
			text.WriteString("  " + line + "\n")
		}
	}
	if len(view.Remarks) > 0 {
		section(&text, "Remarks", listLines(view.Remarks, width))
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func counted(number int, thing string) string {
	if number == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", number, thing)
}

func plannedVIPs(vips []analysis.VIP, format Format) *table {
	t := &table{columns: []column{{heading: "ADDRESS"}, {heading: "POOL", cut: true}, {heading: "SERVICES", cut: true}}}
	for i, vip := range vips {
		if i == screenVIPs && format != Wide {
			break
		}
		t.rows = append(t.rows, []string{vip.Address, orNone(vip.Pool), orNone(strings.Join(vip.Services, ", "))})
	}
	return t
}
