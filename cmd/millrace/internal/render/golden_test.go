// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report/reporttest"
)

var update = flag.Bool("update", false, "write the golden files")

// TestGolden renders the input in each directory of testdata and compares it with the files next to it.
func TestGolden(t *testing.T) {
	outputs := []struct {
		file    string
		render  func(io.Writer, *report.View, Options) error
		options Options
	}{
		{"status.txt", Status, Options{Width: 80}},
		{"vip-details.txt", VIPDetails, Options{Width: 80}},
		{"vips.txt", VIPs, Options{Width: 80}},
		{"vips-wide.txt", VIPs, Options{Format: Wide, Width: 80}},
		{"nodes.txt", Nodes, Options{Width: 80}},
		{"nodes-wide.txt", Nodes, Options{Format: Wide, Width: 80}},
		{"status.yaml", Status, Options{Format: YAML}},
	}
	for _, directory := range goldenInputs(t) {
		view := report.Build(reporttest.Load(t, directory))
		for _, output := range outputs {
			t.Run(filepath.Base(directory)+"/"+output.file, func(t *testing.T) {
				var have bytes.Buffer
				if err := output.render(&have, view, output.options); err != nil {
					t.Fatal(err)
				}
				compare(t, filepath.Join(directory, output.file), have.String())
				if output.options.Format == Text {
					checkWidth(t, have.String(), output.options.Width)
				}
			})
		}
	}
}

func goldenInputs(t *testing.T) []string {
	t.Helper()
	directories, err := filepath.Glob("testdata/*")
	if err != nil || len(directories) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	return directories
}

func compare(t *testing.T, golden, have string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(golden, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatalf("%v: run the test with -update, and read what it wrote", err)
	}
	if diff := cmp.Diff(string(want), have); diff != "" {
		t.Errorf("%s (-want +have):\n%s", golden, diff)
	}
}

func checkWidth(t *testing.T, text string, width int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if length := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); length > width {
			t.Errorf("%d columns, want at most %d: %q", length, width, line)
		}
	}
}
