// SPDX-License-Identifier: Apache-2.0

// Package monitors holds alerts and dashboards to the metrics that programs export, by Prometheus'
// own parser and rule tests.
package monitors

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/hack/catalogue"
)

const root = "../.."

// These are what hack/tools/prometheus reads and writes.
type (
	request struct {
		Queries []string    `json:"queries,omitempty"`
		Rules   string      `json:"rules,omitempty"`
		Cases   []evaluated `json:"cases,omitempty"`
		Objects []any       `json:"objects,omitempty"`
	}
	evaluated struct {
		Series   []series `json:"series"`
		Interval string   `json:"interval"`
		At       string   `json:"at"`
	}
	series struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	answer struct {
		Queries []struct {
			Error     string
			Selectors []struct {
				Name   string
				Labels []string
			}
			Grouping []string
		}
		Cases []struct {
			Error  string
			Alerts []firing
		}
		Objects []string
	}
	firing struct {
		Name                string
		Labels, Annotations map[string]string
	}
)

// program is hack/tools/prometheus: Prometheus' libraries have a module of their own.
var program string

func TestMain(m *testing.M) { os.Exit(built(m)) }

func built(m *testing.M) int {
	directory, err := os.MkdirTemp("", "monitors")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(directory)
	program = filepath.Join(directory, "prometheus")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join(root, "hack", "tools", "prometheus")
	if output, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building hack/tools/prometheus: %v: %s\n", err, output)
		return 1
	}
	return m.Run()
}

// ask has Prometheus' libraries answer.
func ask(t *testing.T, asked request) answer {
	t.Helper()
	input, err := json.Marshal(asked)
	if err != nil {
		t.Fatal(err)
	}
	var output, complaints bytes.Buffer
	command := exec.CommandContext(t.Context(), program)
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(input), &output, &complaints
	if err := command.Run(); err != nil {
		t.Fatalf("hack/tools/prometheus: %v: %s", err, complaints.String())
	}
	var answered answer
	if err := json.Unmarshal(output.Bytes(), &answered); err != nil {
		t.Fatal(err)
	}
	return answered
}

type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// alerts returns those of config/rules, and the file of rules that Prometheus gets of them.
func alerts(t *testing.T) (found []alert, file string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "config", "rules", "prometheus_rule.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var object struct {
		Spec struct {
			Groups []struct {
				Name  string  `json:"name"`
				Rules []alert `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(content, &struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       any            `json:"spec"`
	}{Spec: &object.Spec}); err != nil {
		t.Fatal(err)
	}
	var raw struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := yaml.Unmarshal(content, &raw); err != nil {
		t.Fatal(err)
	}
	for _, group := range object.Spec.Groups {
		found = append(found, group.Rules...)
	}
	return found, string(raw.Spec)
}

// scraped are the labels that Prometheus adds to what it scrapes, by config/monitors.
var scraped = []string{"job", "instance", "namespace", "pod", "node", "container", "endpoint"}

// hold holds queries to the metrics of the page, which is held to the programs. what names each.
func hold(t *testing.T, what, queries []string) {
	t.Helper()
	metrics := catalogue.Read(t)
	if len(metrics) < 60 {
		t.Fatalf("only %d metrics are on %s", len(metrics), catalogue.Page)
	}
	metrics["up"] = []string{}
	for i, query := range ask(t, request{Queries: queries}).Queries {
		if query.Error != "" {
			t.Errorf("%s: %s: %s", what[i], queries[i], query.Error)
			continue
		}
		known := slices.Clone(scraped)
		foreign := false
		for _, selector := range query.Selectors {
			labels, found := metrics[selector.Name]
			if !found {
				t.Errorf("%s: %s: no program exports %q", what[i], queries[i], selector.Name)
				continue
			}
			for _, label := range selector.Labels {
				if labels != nil && !slices.Contains(labels, label) && !slices.Contains(scraped, label) {
					t.Errorf("%s: %s: %s has no label %s", what[i], queries[i], selector.Name, label)
				}
			}
			known, foreign = append(known, labels...), foreign || labels == nil
		}
		for _, label := range query.Grouping {
			if !foreign && !slices.Contains(known, label) {
				t.Errorf("%s: %s: no metric has the label %s", what[i], queries[i], label)
			}
		}
	}
}

// Queries parse, and ask for metrics and labels that there are.
func TestAlertsAskForMetrics(t *testing.T) {
	found, _ := alerts(t)
	var names, queries []string
	for _, alert := range found {
		names, queries = append(names, alert.Alert), append(queries, alert.Expr)
	}
	hold(t, names, queries)
}

// Each alert leads to its paragraph, and each paragraph is of an alert.
func TestRunbooks(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, "docs", "alerts.md"))
	if err != nil {
		t.Fatal(err)
	}
	paragraphs := map[string]bool{}
	for line := range strings.Lines(string(content)) {
		if name, found := strings.CutPrefix(strings.TrimSpace(line), "### "); found {
			paragraphs[name] = true
		}
	}
	found, _ := alerts(t)
	for _, alert := range found {
		want := "https://github.com/millrace-lb/millrace/blob/main/docs/alerts.md#" + strings.ToLower(alert.Alert)
		if alert.Annotations["runbook_url"] != want {
			t.Errorf("%s leads to %s, want %s", alert.Alert, alert.Annotations["runbook_url"], want)
		}
		severity := alert.Labels["severity"]
		said := strings.ToUpper(severity[:1]) + severity[1:]
		if alert.For != "" {
			said += ", after " + alert.For
		}
		if !strings.Contains(string(content), "### "+alert.Alert+"\n\n"+said+". ") {
			t.Errorf("docs/alerts.md does not say of %s: %s", alert.Alert, said)
		}
		if !paragraphs[alert.Alert] {
			t.Errorf("docs/alerts.md has no ### %s", alert.Alert)
		}
		delete(paragraphs, alert.Alert)
	}
	for name := range paragraphs {
		t.Errorf("docs/alerts.md has %s, which is no alert", name)
	}
}
