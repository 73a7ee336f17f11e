// SPDX-License-Identifier: Apache-2.0

// Package monitors checks alerts, dashboards and PodMonitors. Tests with tag long use the rule engine of
// Prometheus.
package monitors

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/hack/catalogue"
	"github.com/millrace-lb/millrace/hack/dashboards"
)

const root = "../.."

type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

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

var metricPattern = regexp.MustCompile(`\bmillrace_[a-z0-9_]+`)

// TestQueriesNameMetrics checks the names in queries without Prometheus' parser, which takes two minutes to
// compile.
func TestQueriesNameMetrics(t *testing.T) {
	metrics := catalogue.Read(t)
	if len(metrics) < 60 {
		t.Fatalf("only %d metrics are on %s", len(metrics), catalogue.Page)
	}
	found, _ := alerts(t)
	var queries []string
	for _, alert := range found {
		queries = append(queries, alert.Expr)
	}
	for _, dashboard := range dashboards.All() {
		queries = append(queries, dashboard.Queries()...)
	}
	for _, query := range queries {
		for _, name := range metricPattern.FindAllString(query, -1) {
			if _, found := metrics[name]; !found {
				t.Errorf("%s: no program exports %q", query, name)
			}
		}
	}
}

// TestRunbooks checks that each alert has a section in the runbook, and each section an alert.
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
		text := strings.ToUpper(severity[:1]) + severity[1:]
		if alert.For != "" {
			text += ", after " + alert.For
		}
		if !strings.Contains(string(content), "### "+alert.Alert+"\n\n"+text+". ") {
			t.Errorf("docs/alerts.md does not describe %s: %s", alert.Alert, text)
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
