// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

var includes = regexp.MustCompile(`(?m)^#include "(.+)"$`)

// The includes of the sources are acyclic, and the README lists every source.
func TestSources(t *testing.T) {
	files, err := filepath.Glob("src/*.[ch]")
	if err != nil || len(files) == 0 {
		t.Fatalf("sources %q: %v", files, err)
	}
	readme, err := os.ReadFile("src/README.md")
	if err != nil {
		t.Fatal(err)
	}
	included := map[string][]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		for _, match := range includes.FindAllSubmatch(text, -1) {
			included[name] = append(included[name], string(match[1]))
		}
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\b`).Match(readme) {
			t.Errorf("src/README.md does not mention %s", name)
		}
	}
	done := map[string]bool{}
	var visit func(string, []string)
	visit = func(name string, by []string) {
		if slices.Contains(by, name) {
			t.Errorf("%s includes itself through %q", name, by)
			return
		}
		if done[name] {
			return
		}
		for _, next := range included[name] {
			visit(next, append(slices.Clone(by), name))
		}
		done[name] = true
	}
	for name := range included {
		visit(name, nil)
	}
}
