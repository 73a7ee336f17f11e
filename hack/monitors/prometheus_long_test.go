// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

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

	"github.com/millrace-lb/millrace/hack/catalogue"
	"github.com/millrace-lb/millrace/hack/dashboards"
)

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

// program is the path of the compiled program of hack/tools/prometheus, which is a separate module.
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

func evaluate(t *testing.T, query request) answer {
	t.Helper()
	input, err := json.Marshal(query)
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

// scraped contains the labels that Prometheus adds to scraped series according to config/monitors.
var scraped = []string{"job", "instance", "namespace", "pod", "node", "container", "endpoint"}

// hold compares the metrics in queries with those on the page. what contains the names of the queries.
func hold(t *testing.T, what, queries []string) {
	t.Helper()
	metrics := catalogue.Read(t)
	if len(metrics) < 60 {
		t.Fatalf("only %d metrics are on %s", len(metrics), catalogue.Page)
	}
	metrics["up"] = []string{}
	// Prometheus exports alerts as a metric with their labels.
	metrics["ALERTS"] = nil
	for i, query := range evaluate(t, request{Queries: queries}).Queries {
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

func TestAlertsReferToMetrics(t *testing.T) {
	found, _ := alerts(t)
	var names, queries []string
	for _, alert := range found {
		names, queries = append(names, alert.Alert), append(queries, alert.Expr)
	}
	hold(t, names, queries)
}

func TestDashboardsReferToMetrics(t *testing.T) {
	var what, queries []string
	for _, dashboard := range dashboards.All() {
		for _, query := range dashboard.Queries() {
			what, queries = append(what, dashboard.Title), append(queries, query)
		}
	}
	if len(queries) < 50 {
		t.Fatalf("only %d queries were found", len(queries))
	}
	hold(t, what, queries)
}

func TestObjects(t *testing.T) {
	var query request
	var names []string
	for _, object := range rendered(t) {
		if strings.HasPrefix(object.GetAPIVersion(), "monitoring.coreos.com/") {
			query.Objects, names = append(query.Objects, object.Object), append(names, object.GetKind()+" "+object.GetName())
		}
	}
	if len(names) != 6 {
		t.Fatalf("there are %q, want five PodMonitors and a PrometheusRule", names)
	}
	unknown := map[string]any{"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "spec": map[string]any{"selectors": nil}}
	problems := evaluate(t, request{Objects: append(query.Objects, unknown)}).Objects
	for i, name := range names {
		if problems[i] != "" {
			t.Errorf("%s: %s", name, problems[i])
		}
	}
	if problems[len(names)] == "" {
		t.Error("a field that does not exist is taken")
	}
}
