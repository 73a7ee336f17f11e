// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

const preflightImage = "millrace.test/lbagent:dev"

// preflight is the output of `millrace preflight` before the installation.
var preflight struct {
	out string
	err error
}

// findings returns each node's findings that are not OK, as "Level check", and the executed checks.
func findings(t *testing.T, out string) (bad map[string][]string, checks []string) {
	t.Helper()
	var result struct {
		Nodes []consoleapi.Preflight `json:"nodes"`
	}
	must(t, json.Unmarshal([]byte(out), &result))
	bad = map[string][]string{}
	for _, node := range result.Nodes {
		bad[node.Node] = []string{}
		for _, finding := range node.Findings {
			checks = append(checks, finding.Check)
			if finding.Level != consoleapi.LevelOK {
				bad[node.Node] = append(bad[node.Node], string(finding.Level)+" "+finding.Check)
			}
		}
		slices.Sort(bad[node.Node])
	}
	slices.Sort(checks)
	return bad, slices.Compact(checks)
}

// Before the installation the nodes have no findings and reach each other.
func TestPreflightBefore(t *testing.T) {
	must(t, preflight.err)
	bad, checks := findings(t, preflight.out)
	if len(bad) != 3 {
		t.Fatalf("findings of %d nodes, want 3: %s", len(bad), preflight.out)
	}
	for node, found := range bad {
		if len(found) > 0 {
			t.Errorf("%s: %q: %s", node, found, preflight.out)
		}
	}
	for _, check := range []string{"kernel", "btf", "bpffs", "forwarding", "uplinks", "xdp", "driver", "ports", "bgp", "nodes", "mtu"} {
		if !slices.Contains(checks, check) {
			t.Errorf("check %s was not run", check)
		}
	}
}

// After the installation, agents and preflight pods report node3's table of iptables-legacy. A second
// installation would conflict with programs, ports and sessions. Nothing remains of the preflight.
func TestPreflightAfter(t *testing.T) {
	// The table exists until its namespace is deleted, and accepts all packets.
	_, err := cluster.Exec(t.Context(), "node3", "iptables-legacy", "-P", "FORWARD", "ACCEPT")
	must(t, err)
	const legacy = "Warning iptables-legacy"
	wanted := map[string][]string{"node1": {}, "node2": {}, "node3": {legacy}}
	out, err := cluster.Millrace(t.Context(), "preflight", "-o", "json")
	must(t, err)
	bad, checks := findings(t, out)
	if difference := cmp.Diff(wanted, bad); difference != "" || slices.Contains(checks, "ports") {
		t.Errorf("%s: got %s", difference, out)
	}
	out, _ = cluster.Millrace(t.Context(), "preflight", "-o", "json", "--install-namespace", "second", "--image", preflightImage)
	bad, _ = findings(t, out)
	if len(bad) != 3 {
		t.Errorf("findings of %d nodes, want 3: %s", len(bad), out)
	}
	for node, found := range bad {
		for _, want := range append([]string{"Fault xdp", "Fault ports", "Warning bgp", "Warning nodes"}, wanted[node]...) {
			if !slices.Contains(found, want) {
				t.Errorf("%s: findings = %q, want %s: %s", node, found, want, out)
			}
		}
	}
	if namespaces := kubectl(t, "get", "namespaces", "-o", "name"); strings.Contains(namespaces, "millrace-preflight") {
		t.Errorf("namespaces were not deleted: %s", namespaces)
	}
}
