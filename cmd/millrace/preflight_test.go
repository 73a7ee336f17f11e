// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
)

// looked are nodes: node2 is old, node3 is silent, and the agent of node10 does not support preflight.
type looked struct{}

func (looked) Run(_ context.Context, node string, _ []string, out io.Writer) error {
	finding := consoleapi.Finding{Check: "kernel", Level: consoleapi.LevelOK, Message: "Linux 6.12"}
	switch node {
	case "node2":
		finding.Level, finding.Message = consoleapi.LevelFault, "Linux 5.15 is too old: it must be 6.1 or later"
	case "node3":
		return errors.New("connection refused\n")
	case "node10":
		return json.NewEncoder(out).Encode(consoleapi.Line{})
	}
	warning := consoleapi.Finding{Check: "driver", Level: consoleapi.LevelWarning, Message: "eth0: generic"}
	return json.NewEncoder(out).Encode(consoleapi.Line{Preflight: &consoleapi.Preflight{Findings: []consoleapi.Finding{finding, warning}}})
}

func TestPreflight(t *testing.T) {
	nodes := []string{"node1", "node2", "node3", "node10"}
	results := runPreflight(t.Context(), looked{}, nodes, []string{"preflight"}, map[string]string{"node4": "ErrImagePull: no such image"})
	all := render.Preflight{Nodes: results, Cluster: []consoleapi.Finding{
		{Check: "kubernetes", Level: consoleapi.LevelOK, Message: "v1.36.1"},
		{Check: "rivals", Level: consoleapi.LevelWarning, Message: "MetalLB serves Services without a class"},
	}}
	var out bytes.Buffer
	if err := all.Write(&out, render.Options{Width: 60}); err != nil {
		t.Fatal(err)
	}
	const want = `Fault kernel: node2
  Linux 5.15 is too old: it must be 6.1 or later
Fault pod: node3
  no result of the node: connection refused
Fault pod: node4
  no result of the node: ErrImagePull: no such image
Fault pod: node10
  no result of the node: its agent does not support
  preflight: it has an older version
Warning rivals: cluster
  MetalLB serves Services without a class
Warning driver: node1, node2
  eth0: generic
OK: kernel, kubernetes
5 nodes: 4 faults, 2 warnings.
`
	if difference := cmp.Diff(want, out.String()); difference != "" {
		t.Error(difference)
	}
	if all.Faults() != 4 {
		t.Errorf("%d faults", all.Faults())
	}
}

// A Secret without a namespace is in Millrace's.
func TestTrialImage(t *testing.T) {
	image := trialOptions{image: "lbagent", pullSecrets: []string{"registry", "kube-system/other"}}.trialImage("millrace-system")
	var names []string
	for _, secret := range image.PullSecrets {
		names = append(names, secret.String())
	}
	if difference := cmp.Diff([]string{"millrace-system/registry", "kube-system/other"}, names); difference != "" || image.Name != "lbagent" {
		t.Errorf("%s: %s", image.Name, difference)
	}
}
