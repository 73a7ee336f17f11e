// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var updateMigrated = flag.Bool("update-migrated", false, "write what `migrate metallb` prints as what is wanted")

// TestMigrateMetalLB turns objects of MetalLB, as kubectl prints them, into ours.
func TestMigrateMetalLB(t *testing.T) {
	in := filepath.Join("testdata", "metallb.yaml")
	var out, complaints bytes.Buffer
	env := environment{args: []string{"millrace", "migrate", "metallb", in}, stdout: &out, stderr: &complaints}
	if code := run(t.Context(), env); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &complaints)
	}
	golden := filepath.Join("testdata", "metallb.golden.yaml")
	if *updateMigrated {
		if err := os.WriteFile(golden, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Error("a password is printed")
	}
}

// TestMigrateByNode has every LBPeer select the nodes that have been moved, beside what it selects.
func TestMigrateByNode(t *testing.T) {
	var out, complaints bytes.Buffer
	in := filepath.Join("testdata", "metallb.yaml")
	env := environment{args: []string{"millrace", "migrate", "metallb", "--by-node", in}, stdout: &out, stderr: &complaints}
	if code := run(t.Context(), env); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &complaints)
	}
	peers := strings.Count(out.String(), "kind: LBPeer\n")
	if selecting := strings.Count(out.String(), "millrace.io/announcer: millrace\n"); peers == 0 || selecting != peers {
		t.Errorf("%d of %d LBPeers select the nodes that have been moved:\n%s", selecting, peers, &out)
	}
}

func TestMigrateRefuses(t *testing.T) {
	for name, test := range map[string]struct{ content, complaint string }{
		"no YAML":           {"kind: [", "read MetalLB's objects"},
		"another's object":  {"apiVersion: v1\nkind: Service\n", `v1 "Service" is none`},
		"one in a list":     {"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod}]\n", `v1 "Pod" is none`},
		"a field's mistake": {"apiVersion: metallb.io/v1beta2\nkind: BGPPeer\nspec: {myASN: x}\n", "read MetalLB's BGPPeer"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "in.yaml")
			if err := os.WriteFile(file, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			var out, complaints bytes.Buffer
			env := environment{args: []string{"millrace", "migrate", "metallb", file}, stdout: &out, stderr: &complaints}
			if code := run(t.Context(), env); code != exitError || !strings.Contains(complaints.String(), test.complaint) || out.Len() > 0 {
				t.Errorf("exit code %d, %q, %q; want %q", code, &out, &complaints, test.complaint)
			}
		})
	}
}
