// SPDX-License-Identifier: Apache-2.0

package monitors

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace-lb/millrace/hack/dashboards"
)

const updateDashboards = "MILLRACE_UPDATE_DASHBOARDS"

func TestDashboards(t *testing.T) {
	directory := filepath.Join(root, "config", "dashboards")
	kustomization, err := os.ReadFile(filepath.Join(directory, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, dashboard := range dashboards.All() {
		want, err := dashboard.JSON()
		if err != nil {
			t.Fatal(err)
		}
		file := dashboard.Name + ".json"
		files = append(files, filepath.Join(directory, file))
		if os.Getenv(updateDashboards) != "" {
			if err := os.WriteFile(filepath.Join(directory, file), want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(filepath.Join(directory, file))
		if err != nil {
			t.Errorf("%v: run this test with %s=1", err, updateDashboards)
			continue
		}
		if difference := cmp.Diff(string(want), string(got)); difference != "" {
			t.Errorf("%s differs from the output of hack/dashboards: run this test with %s=1: %s", file, updateDashboards, difference)
		}
		if !strings.Contains(string(kustomization), "      - "+file+"\n") {
			t.Errorf("config/dashboards/kustomization.yaml does not have %s", file)
		}
	}
	found, err := filepath.Glob(filepath.Join(directory, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if slices.Sort(files); !slices.Equal(found, files) {
		t.Errorf("the directory has %q, want %q", found, files)
	}
}

var (
	variablePattern = regexp.MustCompile(`\$([a-z]+)`)
	legendPattern   = regexp.MustCompile(`\{\{([a-z_]+)\}\}`)
)

// TestDashboardLayout checks that variables in queries are variables of the dashboard, and labels in legends
// those of the query.
func TestDashboardLayout(t *testing.T) {
	for _, dashboard := range dashboards.All() {
		known := []string{}
		for _, variable := range dashboard.Variables {
			known = append(known, variable.Name)
		}
		for _, row := range dashboard.Rows {
			if len(row.Panels) > 6 {
				t.Errorf("%s: %s has %d panels side by side", dashboard.Title, row.Title, len(row.Panels))
			}
			for _, panel := range row.Panels {
				for _, query := range panel.Queries {
					for _, name := range variablePattern.FindAllStringSubmatch(query.Expr, -1) {
						if !slices.Contains(known, name[1]) {
							t.Errorf("%s: %s: there is no variable $%s", dashboard.Title, panel.Title, name[1])
						}
					}
					for _, label := range legendPattern.FindAllStringSubmatch(query.Legend, -1) {
						if by, _, grouped := strings.Cut(query.Expr, ") ("); grouped && strings.Contains(by, " by (") && !regexp.MustCompile(`\b`+label[1]+`\b`).MatchString(by) {
							t.Errorf("%s: %s: the legend has %s, the query sums by %s", dashboard.Title, panel.Title, label[1], by)
						}
					}
				}
			}
		}
		content, err := dashboard.JSON()
		if err != nil {
			t.Fatal(err)
		}
		var whole any
		if err := json.Unmarshal(content, &whole); err != nil {
			t.Fatal(err)
		}
		// A ConfigMap can contain at most 1 MiB.
		if len(content) > 200<<10 {
			t.Errorf("%s has %d KiB", dashboard.Title, len(content)>>10)
		}
	}
}
