// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/module"
)

// TestLicenses checks that the license of each module of a released program permits binary distribution, and
// requires nothing beyond notices.
func TestLicenses(t *testing.T) {
	permitted := []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT"}
	from, err := findSources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}}{{end}}{{end}}", "../../cmd/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := slices.Compact(slices.Sorted(strings.FieldsSeq(string(out))))
	if len(names) < 20 {
		t.Fatalf("%d modules: %q", len(names), names)
	}
	for _, name := range append(names, "std@go") {
		path, version, _ := strings.Cut(name, "@")
		ids, err := from.identifiers(module.Version{Path: path, Version: version})
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if !slices.Contains(permitted, id) {
				t.Errorf("module %s has license %s, which is not in the list of this test", name, id)
			}
		}
	}
}

func TestNotices(t *testing.T) {
	from, err := findSources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	notices, err := from.notices(program, program)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nstd go1.", "\ngithub.com/spf13/cobra v", "Copyright 2009 The Go Authors.", "Apache License"} {
		if !strings.Contains(string(notices), want) {
			t.Errorf("the notices do not contain %q", want)
		}
	}
	if count := strings.Count(string(notices), "\ngithub.com/spf13/cobra v"); count != 1 {
		t.Errorf("the notices contain a module %d times", count)
	}
}
