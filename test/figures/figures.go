// SPDX-License-Identifier: Apache-2.0

// Package figures prints results of control plane benchmarks with their limits.
package figures

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
)

// StrictVariable is the environment variable that makes figures beyond their limits test failures.
const StrictVariable = "STRICT"

// Report is a list of figures.
type Report struct{ figures []figure }

type figure struct {
	name       string
	got, limit float64
	unit       string
}

// Add adds a figure with its limit: the maximum or, if negative, the minimum without the sign.
func (r *Report) Add(name string, got, limit float64, unit string) {
	r.figures = append(r.figures, figure{name, got, limit, unit})
}

func (f figure) holds() bool {
	if f.limit < 0 {
		return f.got >= -f.limit
	}
	return f.got <= f.limit
}

// Print prints the figures. If StrictVariable is set, figures beyond their limits fail the test.
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
