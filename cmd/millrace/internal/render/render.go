// SPDX-License-Identifier: Apache-2.0

// Package render writes a report as text, JSON or YAML.
package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// Format is an output format.
type Format string

// Formats: Text fits the terminal, Wide has all columns.
const (
	Text Format = ""
	Wide Format = "wide"
	JSON Format = "json"
	YAML Format = "yaml"
	// Name has only the names of objects, as in kubectl.
	Name Format = "name"
)

// Structured reports whether the format is machine-readable: JSON, YAML or a jsonpath template.
func (f Format) Structured() bool { return f == JSON || f == YAML || f.isTemplate() }

// isTemplate reports whether the format is a jsonpath template of any kind.
func (f Format) isTemplate() bool { return strings.HasPrefix(string(f), "jsonpath") }

// Check returns an error if the format is an invalid template.
func (f Format) Check() error {
	if !f.isTemplate() {
		return nil
	}
	_, err := f.template()
	return err
}

func (f Format) template() (printers.ResourcePrinter, error) {
	printer, err := (&genericclioptions.JSONPathPrintFlags{}).ToPrinter(string(f))
	if err != nil {
		return nil, fmt.Errorf("--output=%s: %w", f, err)
	}
	return printer, nil
}

// Options of text.
type Options struct {
	Format Format
	Width  int
	// Colour enables colours for the verdict.
	Colour bool
}

// Maximum rows of each list in the one screen of Status.
const (
	screenVIPs     = 15
	screenNodes    = 15
	screenProblems = 20
)

// Status writes the whole report, in text shortened to one screen.
func Status(out io.Writer, view *report.View, options Options) error {
	if options.Format.Structured() {
		return encode(out, options.Format, view)
	}
	width := options.width()
	var text strings.Builder
	text.WriteString(strings.Join(wrap(summary(view), width), "\n") + "\n")
	if len(view.VIPs) > 0 {
		all := vipTable(view, options.Format)
		shown := &table{columns: all.columns, rows: all.rows[:min(len(all.rows), screenVIPs)]}
		section(&text, "VIPs", shown.lines(width))
		more(&text, len(all.rows)-len(shown.rows), "millrace vips")
	}
	if len(view.Nodes) > 0 {
		shown := view.Nodes[:min(len(view.Nodes), screenNodes)]
		section(&text, "Nodes", nodeTable(shown, options.Format).lines(width))
		more(&text, len(view.Nodes)-len(shown), "millrace nodes")
	}
	if causes := report.Causes(view.Problems); len(causes) > 0 {
		shown := causes[:min(len(causes), screenProblems)]
		heading := colour("Problems", red, options.Colour)
		section(&text, heading, problemLines(shown, width))
		more(&text, len(causes)-len(shown), "millrace status -o yaml")
	} else {
		text.WriteString("\n" + colour("No problems.", green, options.Colour) + "\n")
	}
	if len(view.Remarks) > 0 {
		section(&text, "Remarks", listLines(view.Remarks, width))
	}
	if len(view.Next) > 0 {
		section(&text, "Next", listLines(view.Next, width))
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// VIPs writes all VIPs.
func VIPs(out io.Writer, view *report.View, options Options) error {
	switch {
	case options.Format.Structured():
		return encode(out, options.Format, view.VIPs)
	case options.Format == Name:
		var found []string
		for _, vip := range view.VIPs {
			found = append(found, vip.Object)
		}
		return names(out, "vip", found)
	}
	if len(view.VIPs) == 0 {
		return writeVerdict(out, "No VIPs.", view.Next, options)
	}
	lines := vipTable(view, options.Format).lines(options.width())
	return write(out, append(lines, remarkLines(view, options.width())...))
}

// Nodes writes all nodes.
func Nodes(out io.Writer, view *report.View, options Options) error {
	switch {
	case options.Format.Structured():
		return encode(out, options.Format, view.Nodes)
	case options.Format == Name:
		var found []string
		for _, node := range view.Nodes {
			found = append(found, node.Name)
		}
		return names(out, "lbnode", found)
	}
	if len(view.Nodes) == 0 {
		return writeVerdict(out, "No LBNodes: the operator creates one for each node of the cluster when it runs.", nil, options)
	}
	return write(out, nodeTable(view.Nodes, options.Format).lines(options.width()))
}

func (o Options) width() int {
	if o.Format == Wide {
		return 0
	}
	return o.Width
}

func encode(out io.Writer, format Format, value any) error {
	raw, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	if format.isTemplate() {
		return fill(out, format, raw)
	}
	if format == YAML {
		if raw, err = yaml.JSONToYAML(raw); err != nil {
			return fmt.Errorf("encode the report: %w", err)
		}
	} else {
		raw = append(raw, '\n')
	}
	_, err = out.Write(raw)
	return err
}

// fill executes a template; as in kubectl, the elements of a list are its items.
func fill(out io.Writer, format Format, raw []byte) error {
	printer, err := format.template()
	if err != nil {
		return err
	}
	if bytes.HasPrefix(raw, []byte("[")) || bytes.Equal(raw, []byte("null")) {
		raw = slices.Concat([]byte(`{"items": `), raw, []byte("}"))
	}
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	return printer.PrintObj(&unstructured.Unstructured{Object: object}, out)
}

func names(out io.Writer, resource string, names []string) error {
	for _, name := range names {
		if _, err := fmt.Fprintf(out, "%s.%s/%s\n", resource, millracev1beta1.GroupVersion.Group, name); err != nil {
			return err
		}
	}
	return nil
}

func writeVerdict(out io.Writer, verdict string, steps []string, options Options) error {
	lines := []string{verdict}
	if len(steps) > 0 {
		lines = append(lines, "Next")
		lines = append(lines, listLines(steps, options.width())...)
	}
	return write(out, lines)
}

func write(out io.Writer, lines []string) error {
	_, err := io.WriteString(out, strings.Join(lines, "\n")+"\n")
	return err
}

func section(text *strings.Builder, heading string, lines []string) {
	text.WriteString("\n" + heading + "\n")
	for _, line := range lines {
		text.WriteString(line + "\n")
	}
}

func more(text *strings.Builder, count int, command string) {
	if count > 0 {
		fmt.Fprintf(text, "… and %d more: %s\n", count, command)
	}
}

const (
	red   = "31"
	green = "32"
)

func colour(text, code string, on bool) string {
	if !on {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
