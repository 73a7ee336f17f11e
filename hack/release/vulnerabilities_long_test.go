// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// updates contains vulnerabilities that an update of the module would fix, in code that the programs do not
// call or without an effect on them. Remove an entry when the module is updated.
var updates = map[string]string{
	"GO-2026-6094": "github.com/google/cel-go: ext.NativeTypes",
	"GO-2026-6107": "go.etcd.io/etcd/client/pkg/v3: TLS listeners of etcd",
	"GO-2026-6505": "go.opentelemetry.io/otel/exporters/otlp/otlptrace: a log message with the endpoint",
}

// TestVulnerabilities checks that no package in a released program has a known vulnerability without a
// statement in the VEX document. The database is a copy whose version is pinned in the module of the tool.
// Vulnerabilities of Go itself are only logged, because the Go installation is not part of the checkout.
func TestVulnerabilities(t *testing.T) {
	const module = "-modfile=hack/tools/govulncheck/go.mod"
	if out, err := command(t, "go", "mod", "download", module, "golang.org/x/vulndb").CombinedOutput(); err != nil {
		t.Fatalf("download the database: %v: %s", err, out)
	}
	database, err := command(t, "go", "list", "-m", module, "-f", "{{.Dir}}", "golang.org/x/vulndb").Output()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command(t, "go", "tool", module, "govulncheck", "-db", "file://"+strings.TrimSpace(string(database))+"/data/osv",
		"-scan", "package", "-format", "json", "./cmd/...").Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	scanned := false
	seen := map[string]bool{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var message struct {
			Config  *struct{}
			Finding *struct {
				OSV          string
				FixedVersion string `json:"fixed_version"`
				Trace        []struct{ Module, Version, Package string }
			}
		}
		if err := decoder.Decode(&message); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		scanned = scanned || message.Config != nil
		found := message.Finding
		if found == nil || found.Trace[0].Package == "" || seen[found.OSV] {
			continue
		}
		seen[found.OSV] = true
		in := found.Trace[0]
		switch {
		case bytes.Contains(vex, []byte(`"`+found.OSV+`"`)):
		case updates[found.OSV] != "":
			t.Logf("%s: %s, fixed in %s: update it", found.OSV, updates[found.OSV], found.FixedVersion)
		case in.Module == "stdlib":
			t.Logf("%s: %s of Go %s, fixed in %s: build releases with that version", found.OSV, in.Package, in.Version, found.FixedVersion)
		default:
			t.Errorf("%s: %s of %s %s, fixed in %s", found.OSV, in.Package, in.Module, in.Version, found.FixedVersion)
		}
	}
	for id := range updates {
		if !seen[id] {
			t.Errorf("%s is not found any more: remove it from this test", id)
		}
	}
	if !scanned {
		t.Errorf("govulncheck reported no configuration: %s", out)
	}
}

func command(t *testing.T, name string, arguments ...string) *exec.Cmd {
	result := exec.CommandContext(t.Context(), name, arguments...)
	result.Dir = "../.."
	return result
}
