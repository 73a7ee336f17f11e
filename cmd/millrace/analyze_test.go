// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// TestAnalyze compares analyses with the files next to them, without a cluster.
func TestAnalyze(t *testing.T) {
	for directory, want := range map[string]int{"good": exitOK, "faults": exitProblems} {
		t.Run(directory, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := []string{"millrace", "analyze", "-f", "testdata/analyze/" + directory, "--kubeconfig", "/nonexistent"}
			if code := run(t.Context(), environment{args: args, stdout: &stdout, stderr: &stderr, width: 100}); code != want {
				t.Errorf("exit code %d, want %d: %s", code, want, stderr.String())
			}
			golden := "testdata/analyze/" + directory + ".txt"
			if *update {
				if err := os.WriteFile(golden, stdout.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(text), stdout.String()); diff != "" {
				t.Errorf("differs from %s; if that is meant, go test ./cmd/millrace -run TestAnalyze -update:\n%s", golden, diff)
			}
		})
	}
}

const (
	poolManifest = `{apiVersion: millrace.io/v1beta1, kind: VIPPool, metadata: {name: public}, spec: {addresses: ["203.0.113.0/30"]}}
---
`
	serviceManifest = `{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80}]}}
---
`
	announcedManifest = `{apiVersion: millrace.io/v1beta1, kind: LBPeer, metadata: {name: tor}, spec: {router: {address: 198.51.100.1}, peerASN: 1, localASN: 2,
 passwordSecretRef: {name: tor}}}
---
{apiVersion: millrace.io/v1beta1, kind: VIPAdvertisement, metadata: {name: all}, spec: {}}
---
`
)

func TestAnalyzeInput(t *testing.T) {
	for _, test := range []struct {
		name, stdin    string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"nothing of ours", serviceManifest, nil, exitOK, "1 object, 0 VIPs, 0 problems.", ""},
		{"the default class", poolManifest + serviceManifest, []string{"--default-class"}, exitOK, "203.0.113.0  public  default/web", ""},
		{"the namespace", poolManifest + serviceManifest, []string{"--default-class", "-n", "shop"}, exitOK, "shop/web", ""},
		{"no pool", serviceManifest, []string{"--default-class"}, exitOK, "there is no VIPPool: the addresses of 1 Services are not verified", ""},
		{"another class", poolManifest + strings.Replace(serviceManifest, "selector", "loadBalancerClass: example.com/lb, selector", 1),
			[]string{"--load-balancer-class", "example.com/lb"}, exitOK, "default/web", ""},
		{"no Secret", announcedManifest, nil, exitProblems, "Secret millrace-bgp/tor does not exist", ""},
		{"Secrets elsewhere", announcedManifest, []string{"--assume-secrets"}, exitOK, "2 objects, 0 VIPs, 0 problems.", ""},
		{"no file", "", []string{"-f", "/nonexistent"}, exitError, "", "/nonexistent"},
		{"no such class", "", []string{"--load-balancer-class", "a b"}, exitError, "", "no load balancer class"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append([]string{"millrace", "analyze", "-f", "-"}, test.args...)
			code := run(t.Context(), environment{args: args, stdin: strings.NewReader(test.stdin), stdout: &stdout, stderr: &stderr, width: 100})
			if code != test.code || !strings.Contains(stdout.String(), test.stdout) || !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("exit code %d, want %d\n%s%s", code, test.code, stdout.String(), stderr.String())
			}
		})
	}
}

// TestQuickStart checks that the manifests of README.md and the samples announce each address of their
// pools.
func TestQuickStart(t *testing.T) {
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "<<'END'\n")
	quickStart, _, found := strings.Cut(rest, "\nEND\n")
	if !found {
		t.Fatal("README.md has no manifests for kubectl apply")
	}
	service := "\n---\n" + strings.Replace(serviceManifest, "selector", "loadBalancerClass: millrace.io/lb, selector", 1)
	for name, test := range map[string]struct{ args, stdin, want string }{
		"README.md": {"-", quickStart + service, "4 objects, 1 VIP, 0 problems."},
		"README.md, in both families": {
			"-", strings.Replace(quickStart, "203.0.113.0/24", `203.0.113.0/24, "2001:db8:cafe::/64"`, 1) + service,
			"add IPv6 to spec.families",
		},
		"config/samples": {"../../config/samples/lbpeer.yaml", "", "0 problems."},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"millrace", "analyze", "-f", test.args}
			if name == "config/samples" {
				args = append(args, "-f", "../../config/samples/vippool.yaml", "-f", "../../config/samples/vipadvertisement.yaml", "--assume-secrets")
			}
			var stdout, stderr bytes.Buffer
			run(t.Context(), environment{args: args, stdin: strings.NewReader(test.stdin), stdout: &stdout, stderr: &stderr})
			if !strings.Contains(stdout.String(), test.want) {
				t.Errorf("printed %s%s, want %q", stdout.String(), stderr.String(), test.want)
			}
		})
	}
}

func TestAnalyzeJSON(t *testing.T) {
	var stdout, stderr bytes.Buffer
	args := []string{"millrace", "analyze", "-f", "testdata/analyze/faults/routes.yaml", "-o", "json"}
	if code := run(t.Context(), environment{args: args, stdout: &stdout, stderr: &stderr}); code != exitProblems {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	var view struct {
		Objects  int
		VIPs     []any
		Problems []struct{ Kind, Namespace, Name, Reason, Message, Source string }
	}
	if err := json.Unmarshal(stdout.Bytes(), &view); err != nil {
		t.Fatal(err)
	}
	if view.Objects != 6 || view.VIPs == nil || len(view.Problems) == 0 || view.Problems[0].Source != "testdata/analyze/faults/routes.yaml" {
		t.Errorf("read back %+v", view)
	}
}
