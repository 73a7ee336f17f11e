// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestVEX checks that the statements apply to the required version of GoBGP, that vulnerable packages are not
// linked, and that the lint rule forbids vulnerable functions of linked packages.
func TestVEX(t *testing.T) {
	var document struct {
		Statements []struct {
			Vulnerability struct{ Name string }
			Products      []struct {
				Subcomponents []struct {
					ID string `json:"@id"`
				}
			}
			Justification string
			Impact        string `json:"impact_statement"`
		}
	}
	if err := json.Unmarshal(vex, &document); err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{.ImportPath}}{{with .Module}} {{.Version}}{{end}}", "./cmd/...")
	list.Dir = "../.."
	linked, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for line := range strings.Lines(string(linked)) {
		path, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		versions[path] = version
	}
	rules, err := os.ReadFile("../../.golangci.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rule := regexp.MustCompile(`pattern: (.+)\n +pkg: \^github\\\.com/osrg/gobgp/`).FindSubmatch(rules)
	if rule == nil {
		t.Fatal("no lint rule for GoBGP")
	}
	forbidden := regexp.MustCompile(string(rule[1]))
	code := regexp.MustCompile(`^Vulnerable code: (\S+) \(([^)]+)\)\.`)
	tested := false
	for _, s := range document.Statements {
		name, parts := s.Vulnerability.Name, code.FindStringSubmatch(s.Impact)
		if parts == nil {
			t.Errorf("%s: no vulnerable code in %q", name, s.Impact)
			continue
		}
		version, isLinked := versions[parts[1]]
		if want := "vulnerable_code_not_in_execute_path"; isLinked != (s.Justification == want) {
			t.Errorf("%s: justification %s, %s linked: %v", name, s.Justification, parts[1], isLinked)
		}
		if !isLinked {
			continue
		}
		tested = true
		if id := s.Products[0].Subcomponents[0].ID; id != "pkg:golang/github.com/osrg/gobgp/v3@"+version {
			t.Errorf("%s: statement about %s, but the programs have version %s", name, id, version)
		}
		for function := range strings.SplitSeq(parts[2], ", ") {
			if !forbidden.MatchString(function) {
				t.Errorf("%s: no lint rule forbids %s", name, function)
			}
		}
	}
	if !tested {
		t.Error("no statement about a linked package")
	}
}
