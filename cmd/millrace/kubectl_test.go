// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestKubectlOutput(t *testing.T) {
	items := maps.Clone(listed)
	items["nodes"] = `{"metadata":{"name":"node2"}}`
	var selectors []string
	lists := listsOf(items)
	api := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		if strings.HasSuffix(request.URL.Path, "/nodes") {
			selectors = append(selectors, request.URL.Query().Get("labelSelector"))
		}
		lists.ServeHTTP(out, request)
	}))
	defer api.Close()
	kubeconfig := " --kubeconfig " + kubeconfigOf(t, api.URL)
	for line, want := range map[string]string{
		"vips -o name":                                   "vip.millrace.io/203.0.113.1\nvip.millrace.io/203.0.113.2\n",
		"vips -n shop -o name":                           "vip.millrace.io/203.0.113.1\n",
		"vips -l tier=gold -o name":                      "vip.millrace.io/203.0.113.1\n",
		"vips -l tier!=gold -o name":                     "vip.millrace.io/203.0.113.2\n",
		"vips -o jsonpath={.items[*].address}":           "203.0.113.1 203.0.113.2",
		"vips -o jsonpath-as-json={.items[*].none}":      "[]\n",
		"nodes -o name":                                  "lbnode.millrace.io/node1\nlbnode.millrace.io/node2\n",
		"nodes -l zone=a -o name":                        "lbnode.millrace.io/node2\n",
		"nodes -o jsonpath={.items[0].id}":               "1",
		"status -o jsonpath={.nodes[*].name}":            "node1 node2",
		"status -o jsonpath={.vips[0].services[0].name}": "web",
	} {
		stdout, stderr, code := runWith(t, both(), line+kubeconfig)
		if code != exitOK || stdout != want {
			t.Errorf("%s: exit code %d, %q, want %q: %s", line, code, stdout, want, stderr)
		}
	}
	if !slices.Equal(selectors, []string{"zone=a"}) {
		t.Errorf("Nodes were listed with selectors %q", selectors)
	}
	for line, want := range map[string]string{
		"status -o name":         "--output=name: must be one of wide, json, yaml, jsonpath=TEMPLATE",
		"vips -o jsonpath={.a":   "--output=jsonpath={.a:",
		"vips -o jsonpath=":      "no template given",
		"vips -l tier=gold=fine": "--selector=tier=gold=fine:",
	} {
		if _, stderr, code := runWith(t, both(), line+kubeconfig); code != exitError || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %q, want %q", line, code, stderr, want)
		}
	}
}

func TestImpersonation(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]bool{}
	lists := listsOf(nil)
	api := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		mu.Lock()
		seen[strings.Join([]string{
			request.Header.Get("Impersonate-User"), request.Header.Get("Impersonate-Uid"),
			strings.Join(request.Header.Values("Impersonate-Group"), ","),
		}, " ")] = true
		mu.Unlock()
		lists.ServeHTTP(out, request)
	}))
	defer api.Close()
	var stdout, stderr bytes.Buffer
	args := []string{
		"millrace", "nodes", "--kubeconfig", kubeconfigOf(t, api.URL), "--context", "a",
		"--as", "jane", "--as-uid", "7", "--as-group", "viewers", "--as-group", "shop",
	}
	if code := run(t.Context(), environment{args: args, stdout: &stdout, stderr: &stderr}); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	if !maps.Equal(seen, map[string]bool{"jane 7 viewers,shop": true}) {
		t.Errorf("requests were sent as %v", seen)
	}
}
