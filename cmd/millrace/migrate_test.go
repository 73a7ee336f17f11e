// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/cilium"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/manifests"
)

var updateMigrated = flag.Bool("update-migrated", false, "write what `migrate` prints as what is wanted")

var migrated = []string{"metallb", "cilium", "kube-vip"}

func migrate(t *testing.T, from string, flags ...string) string {
	t.Helper()
	var out, complaints bytes.Buffer
	args := append([]string{"millrace", "migrate", from, filepath.Join("testdata", from+".yaml")}, flags...)
	if code := run(t.Context(), environment{args: args, stdout: &out, stderr: &complaints}); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &complaints)
	}
	return out.String()
}

// TestMigrate converts objects as printed by kubectl. An API server accepts all of the output.
func TestMigrate(t *testing.T) {
	for _, from := range migrated {
		t.Run(from, func(t *testing.T) {
			got := migrate(t, from)
			golden := filepath.Join("testdata", from+".golden.yaml")
			if *updateMigrated {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if strings.Contains(got, "hunter2") {
				t.Error("a password is printed")
			}
			reader, err := manifests.NewReader("default")
			if err != nil {
				t.Fatal(err)
			}
			if err := reader.Read(golden, strings.NewReader(got)); err != nil {
				t.Fatal(err)
			}
			if found := reader.Objects(); len(found.Problems) > 0 || len(found.Known) != strings.Count(got, "\n---\n") {
				t.Errorf("an API server accepts %d objects and rejects %+v", len(found.Known), found.Problems)
			}
		})
	}
}

func TestMigrateByNode(t *testing.T) {
	for _, from := range migrated {
		t.Run(from, func(t *testing.T) {
			got := migrate(t, from, "--by-node")
			peers := strings.Count(got, "kind: LBPeer\n")
			if selecting := strings.Count(got, "millrace.io/announcer: millrace\n"); peers == 0 || selecting != peers {
				t.Errorf("%d of %d LBPeers select the nodes that have been moved:\n%s", selecting, peers, got)
			}
		})
	}
}

func TestMigrateInputs(t *testing.T) {
	const pool = "apiVersion: cilium.io/v2\nkind: CiliumLoadBalancerIPPool\nmetadata: {name: %s}\nspec: {blocks: [{cidr: 203.0.113.0/28}]}"
	directory := t.TempDir()
	var files []string
	for _, name := range []string{"first", "second"} {
		file := filepath.Join(directory, name)
		if err := os.WriteFile(file, fmt.Appendf(nil, pool, name), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	all, err := inputs(strings.NewReader(fmt.Sprintf(pool, "third")), append(files, "-"))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := cilium.Read(all)
	if err != nil {
		t.Fatal(err)
	}
	if pools := cilium.Convert(objects).Pools; len(pools) != 3 || pools[2].Name != "third" {
		t.Errorf("read %+v", pools)
	}
	if _, err := inputs(nil, []string{filepath.Join(directory, "absent")}); err == nil {
		t.Error("a file that is absent is read")
	}
}

func TestMigrateRefuses(t *testing.T) {
	for name, test := range map[string]struct{ from, content, complaint string }{
		"no YAML":            {"metallb", "kind: [", "read MetalLB's objects"},
		"another's object":   {"metallb", "apiVersion: v1\nkind: Service\n", `v1 "Service" is not supported`},
		"one in a list":      {"metallb", "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod}]\n", `v1 "Pod" is not supported`},
		"a field's mistake":  {"metallb", "apiVersion: metallb.io/v1beta2\nkind: BGPPeer\nspec: {myASN: x}\n", "read MetalLB's objects: BGPPeer"},
		"MetalLB's object":   {"cilium", "apiVersion: metallb.io/v1beta2\nkind: BGPPeer\n", `"BGPPeer" is not supported`},
		"none of kube-vip's": {"kube-vip", "apiVersion: v1\nkind: Service\n", `"Service" is not supported`},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "in.yaml")
			if err := os.WriteFile(file, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			var out, complaints bytes.Buffer
			env := environment{args: []string{"millrace", "migrate", test.from, file}, stdout: &out, stderr: &complaints}
			if code := run(t.Context(), env); code != exitError || !strings.Contains(complaints.String(), test.complaint) || out.Len() > 0 {
				t.Errorf("exit code %d, %q, %q; want %q", code, &out, &complaints, test.complaint)
			}
		})
	}
}
