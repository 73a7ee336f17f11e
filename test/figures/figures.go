// SPDX-License-Identifier: Apache-2.0

// Package figures prints what benchmarks of the control plane measured, beside what is wanted.
package figures

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
)

// StrictVariable makes figures beyond their limits failures where it is set to anything.
const StrictVariable = "STRICT"

// Report is figures in their order.
type Report struct{ figures []figure }

type figure struct {
	name       string
	got, limit float64
	unit       string
}

// Add adds a figure and its limit, both in the unit: the highest value that holds or, where it is
// negative, the lowest one without its sign.
func (r *Report) Add(name string, got, limit float64, unit string) {
	r.figures = append(r.figures, figure{name, got, limit, unit})
}

func (f figure) holds() bool {
	if f.limit < 0 {
		return f.got >= -f.limit
	}
	return f.got <= f.limit
}

// Print prints the figures. If StrictVariable is set, those beyond their limits fail the test.
func (r *Report) Print(t *testing.T, title string) {
	t.Helper()
	text := &strings.Builder{}
	fmt.Fprintf(text, "%s\n", title)
	columns := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	var beyond []string
	for _, f := range r.figures {
		mark, bound := "", "at most"
		if f.limit < 0 {
			bound = "at least"
		}
		if !f.holds() {
			mark = "MISSED"
			beyond = append(beyond, f.name)
		}
		fmt.Fprintf(columns, "  %s\t%s %s\t%s %g\t%s\n", f.name, short(f.got), f.unit, bound, max(f.limit, -f.limit), mark)
	}
	_ = columns.Flush()
	fmt.Print(text)
	if os.Getenv(StrictVariable) != "" && len(beyond) > 0 {
		t.Errorf("beyond their limits: %s", strings.Join(beyond, "; "))
	}
}

func short(value float64) string {
	if value >= 100 || value == float64(int(value)) {
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%.2f", value)
}
