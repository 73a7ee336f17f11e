// SPDX-License-Identifier: Apache-2.0

// Package catalogue compares docs/metrics.md with the metrics in the registries of the programs, and
// docs/reference.md with their flags. A test of each registry or program passes its content.
package catalogue

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
)

// Page is the path of the page of metrics, relative to the root of the project.
const Page = "docs/metrics.md"

// Reference is the path of the page of all other names, relative to the root of the project.
const Reference = "docs/reference.md"

// Environment variables that make tests write the pages instead of comparing them.
const (
	Update          = "MILLRACE_UPDATE_METRICS"
	UpdateReference = "MILLRACE_UPDATE_REFERENCE"
)

// Prefix is the prefix of the names of the project's metrics.
const Prefix = "millrace_"

// Metric describes a metric in a registry.
type Metric struct {
	Name, Type, Help string
	Labels           []string
}

// Own compares a section with the project's metrics. Each metric must have a series, because the type is
// known for series only, and its name must follow Prometheus' conventions.
func Own(t *testing.T, section string, collectors ...prometheus.Collector) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
	types := map[string]string{}
	for _, family := range families {
		types[family.GetName()] = strings.ToLower(dto.MetricType_name[int32(family.GetType())])
	}
	var lines []string
	for _, metric := range described(t, collectors...) {
		if metric.Type = types[metric.Name]; metric.Type == "" {
			t.Errorf("%s has no series in this test, so its type is not known", metric.Name)
		}
		lines = append(lines, metric.row())
	}
	hold(t, section, "| Metric | Type | Labels | What |\n|---|---|---|---|\n"+strings.Join(lines, "\n"))
}

// Foreign compares a section with the metrics of libraries. Of the metrics of the Go runtime, only
// go_goroutines is required.
func Foreign(t *testing.T, section string, registry prometheus.Collector) {
	t.Helper()
	var names []string
	for _, metric := range described(t, registry) {
		if !strings.HasPrefix(metric.Name, Prefix) && (!strings.HasPrefix(metric.Name, "go_") || metric.Name == "go_goroutines") {
			names = append(names, "`"+metric.Name+"`")
		}
	}
	hold(t, section, strings.Join(names, ",\n"))
}

func (m Metric) row() string {
	labels := make([]string, 0, len(m.Labels))
	for _, label := range m.Labels {
		labels = append(labels, "`"+label+"`")
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s |", m.Name, m.Type, strings.Join(labels, ", "), strings.ReplaceAll(m.Help, "|", `\|`))
}

// descPattern parses the text of a prometheus.Desc, which has no getters.
var descPattern = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), unit: "[^"]*", constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

func described(t *testing.T, collectors ...prometheus.Collector) []Metric {
	t.Helper()
	found := map[string]Metric{}
	for _, collector := range collectors {
		descriptions := make(chan *prometheus.Desc)
		go func() {
			defer close(descriptions)
			collector.Describe(descriptions)
		}()
		for description := range descriptions {
			parts := descPattern.FindStringSubmatch(description.String())
			if parts == nil {
				t.Fatalf("%s: unknown format of prometheus.Desc: adapt hack/catalogue", description)
			}
			metric := Metric{Name: unquoted(t, parts[1]), Help: unquoted(t, parts[2])}
			if parts[3] != "" {
				metric.Labels = strings.Split(parts[3], ",")
			}
			found[metric.Name] = metric
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Metric) int { return strings.Compare(a.Name, b.Name) })
}

func unquoted(t *testing.T, text string) string {
	t.Helper()
	plain, err := strconv.Unquote(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return plain
}

func hold(t *testing.T, section, want string) {
	t.Helper()
	holdIn(t, Page, Update, section, want)
}

// HoldReference compares or writes a section of the page Reference.
func HoldReference(t *testing.T, section, want string) {
	t.Helper()
	holdIn(t, Reference, UpdateReference, section, want)
}

func holdIn(t *testing.T, page, update, section, want string) {
	t.Helper()
	file := filepath.Join(Root(t), page)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- begin "+section+" -->\n\n", "\n\n<!-- end "+section+" -->"
	before, rest, found := strings.Cut(string(content), begin)
	got, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no section %s", page, section)
	}
	if got == want {
		return
	}
	if os.Getenv(update) == "" {
		t.Errorf("section %s of %s differs from the code: run this test with %s=1. Want:\n%s", section, page, update, want)
		return
	}
	if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Hold compares or writes a section of the page of metrics that is not a table of metrics, such as
// measurements.
func Hold(t *testing.T, section, want string) {
	t.Helper()
	hold(t, section, want)
}

// Root returns the absolute path of the project's root.
func Root(t *testing.T) string {
	t.Helper()
	directory, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(directory, "go.mod")); err == nil {
			return directory
		}
		parent := filepath.Dir(directory)
		if parent == directory {
			t.Fatal("no go.mod above this directory")
		}
		directory = parent
	}
}

var (
	rowPattern  = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| ([a-z]+) \\| (.*?) \\| ")
	namePattern = regexp.MustCompile("(?m)^`([a-z0-9_]+)`,?$")
)

// Read returns the labels of the metrics on the page by the names of their series. The labels are nil if they
// are unknown.
func Read(t *testing.T) map[string][]string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(Root(t), Page))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, row := range rowPattern.FindAllStringSubmatch(string(content), -1) {
		labels := []string{}
		if row[3] != "" {
			labels = strings.Split(strings.ReplaceAll(row[3], "`", ""), ", ")
		}
		if row[2] != "histogram" {
			found[row[1]] = labels
			continue
		}
		found[row[1]+"_bucket"], found[row[1]+"_sum"], found[row[1]+"_count"] = append(slices.Clone(labels), "le"), labels, labels
	}
	for _, name := range namePattern.FindAllStringSubmatch(string(content), -1) {
		// The types of these metrics are unknown.
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			found[name[1]+suffix] = nil
		}
	}
	return found
}
