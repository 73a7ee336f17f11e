// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var listKinds = map[string]string{
	"vippools": "VIPPoolList", "vips": "VIPList", "lbpeers": "LBPeerList", "vipadvertisements": "VIPAdvertisementList",
	"lbnodes": "LBNodeList", "lbnodereports": "LBNodeReportList", "nodes": "NodeList", "services": "ServiceList", "endpointslices": "EndpointSliceList", "pods": "PodList",
}

func emptyCluster(t *testing.T) string {
	t.Helper()
	return fakeCluster(t, nil)
}

// fakeCluster answers the list of each resource with the given JSON items, and returns a kubeconfig.
func fakeCluster(t *testing.T, items map[string]string) string {
	t.Helper()
	api := httptest.NewServer(listsOf(items))
	t.Cleanup(api.Close)
	return kubeconfigOf(t, api.URL)
}

func listsOf(items map[string]string) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		version := "v1"
		if parts := strings.Split(request.URL.Path, "/"); parts[1] == "apis" {
			version = parts[2] + "/" + parts[3]
		}
		out.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(out, `{"apiVersion":%q,"kind":%q,"metadata":{},"items":[%s]}`,
			version, listKinds[filepath.Base(request.URL.Path)], items[filepath.Base(request.URL.Path)])
	})
}

func kubeconfigOf(t *testing.T, url string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: a,
clusters: [{name: a, cluster: {server: %q}}], contexts: [{name: a, context: {cluster: a, user: ""}}]}`, url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestRun(t *testing.T) {
	kubeconfig := emptyCluster(t)
	for _, test := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"version", []string{"millrace", "version"}, exitOK, "dev\n", ""},
		{"version as a flag", []string{"millrace", "--version"}, exitOK, "dev\n", ""},
		{"version of the servers", []string{"millrace", "version", "-o", "json", "--kubeconfig", kubeconfig}, exitOK, `"servers": []`, ""},
		{"version without a cluster", []string{"millrace", "version", "-o", "json", "--kubeconfig", "/nonexistent"}, exitError, `"client": "dev"`, "/nonexistent"},
		{"help as itself", []string{"/usr/bin/millrace", "status", "--help"}, exitOK, "\n  millrace status", ""},
		{"help as a plug-in", []string{"/usr/bin/kubectl-millrace", "status", "--help"}, exitOK, "\n  kubectl millrace status", ""},
		{"status", []string{"millrace", "status", "--kubeconfig", kubeconfig}, exitOK, "create a VIPPool", ""},
		{"status with problems", []string{"millrace", "status", "--exit-code", "--kubeconfig", kubeconfig}, exitProblems, "NotRunning", ""},
		{"vips", []string{"millrace", "vips", "--kubeconfig", kubeconfig}, exitOK, "No VIPs.", ""},
		{"nodes", []string{"millrace", "nodes", "-o", "yaml", "--kubeconfig", kubeconfig}, exitOK, "[]\n", ""},
		{"no such format", []string{"millrace", "vips", "-o", "xml"}, exitError, "", "--output=xml: must be one of wide, json, yaml"},
		{"no such command", []string{"millrace", "vip"}, exitError, "", `has no command "vip"; did you mean millrace vips?`},
		{"no such VIP", []string{"millrace", "vips", "203.0.113.7", "--kubeconfig", kubeconfig}, exitError, "", "no such VIP: there is no VIP 203.0.113.7"},
		{"too many arguments", []string{"millrace", "nodes", "x"}, exitError, "", `unexpected argument "x"; write millrace nodes`},
		{"no such kubeconfig", []string{"millrace", "status", "--exit-code", "--kubeconfig", "/nonexistent"}, exitError, "", "/nonexistent"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), environment{args: test.args, stdout: &stdout, stderr: &stderr, width: 100})
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if !strings.Contains(stdout.String(), test.stdout) || test.stdout == "" && stdout.Len() > 0 {
				t.Errorf("stdout %q, want %q", stdout.String(), test.stdout)
			}
			if !strings.Contains(stderr.String(), test.stderr) || test.stderr == "" && stderr.Len() > 0 {
				t.Errorf("stderr %q, want %q", stderr.String(), test.stderr)
			}
		})
	}
}

func TestStatusJSON(t *testing.T) {
	var stdout, stderr bytes.Buffer
	args := []string{"millrace", "status", "-o", "json", "--kubeconfig", emptyCluster(t)}
	if code := run(t.Context(), environment{args: args, stdout: &stdout, stderr: &stderr}); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	var view struct {
		VIPs     []any
		Nodes    []any
		Problems []struct{ Kind, Reason string }
	}
	if err := json.Unmarshal(stdout.Bytes(), &view); err != nil {
		t.Fatal(err)
	}
	if view.VIPs == nil || view.Nodes == nil || len(view.Problems) != 1 || view.Problems[0].Reason != "NotRunning" {
		t.Errorf("read back %+v", view)
	}
}
