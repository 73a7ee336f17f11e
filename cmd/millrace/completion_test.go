// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

var completed = map[string]string{
	"vips": `{"metadata":{"name":"203.0.113.1"},"spec":{"address":"203.0.113.1","claims":[{"namespace":"shop","name":"web"}]}},
		{"metadata":{"name":"v6"},"spec":{"address":"2001:db8:cafe::1","claims":[{"namespace":"shop","name":"web"}]}},
		{"metadata":{"name":"203.0.113.9"},"spec":{"address":"203.0.113.9"}}`,
	"services": `{"metadata":{"namespace":"shop","name":"web"},"spec":{"ports":[{"port":80},{"port":443}]},
		"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.1"},{"ip":"2001:db8:cafe::1"}]}}}`,
	"lbnodes": `{"metadata":{"name":"node1"},"spec":{"id":1}},{"metadata":{"name":"node2"},"spec":{"id":2}}`,
}

// kubectl runs kubectl_complete-millrace with the arguments typed after `kubectl millrace`.
func TestCompletion(t *testing.T) {
	kubeconfig := fakeCluster(t, completed)
	for name, test := range map[string]struct {
		typed []string
		want  []string
	}{
		"commands":       {[]string{"vi"}, []string{"vips"}},
		"addresses":      {[]string{"drops", "--vip", "203"}, []string{"203.0.113.1", "203.0.113.9"}},
		"VIPs, Services": {[]string{"vips", ""}, []string{"2001:db8:cafe::1", "203.0.113.1", "203.0.113.9", "shop/web"}},
		"Services":       {[]string{"vips", "-n", "shop", "w"}, []string{"web"}},
		"nodes":          {[]string{"trace", "--node", ""}, []string{"node1", "node2"}},
		"one of several": {[]string{"top", "--node", "node1", "--node", "node2"}, []string{"node2"}},
		"namespaces":     {[]string{"drops", "-n", ""}, []string{"shop"}},
		"ports of a VIP": {[]string{"trace", "198.51.100.1:1", "203"}, []string{"203.0.113.1:443", "203.0.113.1:80"}},
		"IPv6":           {[]string{"trace", "198.51.100.1:1", "["}, []string{"[2001:db8:cafe::1]:443", "[2001:db8:cafe::1]:80"}},
		"no source":      {[]string{"trace", ""}, nil},
		"formats":        {[]string{"status", "-o", ""}, []string{"wide", "json", "yaml"}},
		"format":         {[]string{"top", "-o", ""}, []string{"json"}},
		"no such file":   {[]string{"trace", "--kubeconfig", "/nonexistent", "--node", ""}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", kubeconfig)
			var stdout, stderr bytes.Buffer
			args := append([]string{"/usr/bin/kubectl_complete-millrace"}, test.typed...)
			if code := run(t.Context(), environment{args: args, stdout: &stdout, stderr: &stderr}); code != exitOK {
				t.Fatalf("exit code %d: %s", code, stderr.String())
			}
			lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
			// The last line is cobra's directive, which kubectl parses.
			if last := lines[len(lines)-1]; !strings.HasPrefix(last, ":") {
				t.Errorf("no directive in the last line %q", last)
			}
			var words []string
			for _, line := range lines[:len(lines)-1] {
				word, _, _ := strings.Cut(line, "\t")
				words = append(words, word)
			}
			if strings.Join(words, " ") != strings.Join(test.want, " ") {
				t.Errorf("completed %q, want %q", words, test.want)
			}
		})
	}
}
