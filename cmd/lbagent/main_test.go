// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

func noEnvironment(string) string { return "" }

func TestVersion(t *testing.T) {
	var out bytes.Buffer
	cmd := command(noEnvironment, strings.NewReader(""), &out, &out)
	cmd.SetArgs([]string{"version"})
	if err := cmd.ExecuteContext(t.Context()); err != nil || out.String() != "dev\n" {
		t.Errorf("printed %q, error %v", out.String(), err)
	}
}

// What is wrong with the command line is said in the words of its flags.
func TestWrongFlags(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no node":           {nil, "--node-name"},
		"uplink":            {[]string{"--node-name=a", "--uplinks=eth["}, "--uplinks"},
		"size":              {[]string{"--node-name=a", "--max-tables=0"}, "--max-tables is 0"},
		"delay":             {[]string{"--node-name=a", "--withdraw-delay=-1s"}, "--withdraw-delay"},
		"level":             {[]string{"--node-name=a", "--log-level=loud"}, "--log-level"},
		"kubeconfig":        {[]string{"--node-name=a", "--kubeconfig=/nowhere/config"}, "/nowhere/config"},
		"argument":          {[]string{"start"}, "start"},
		"several at a time": {[]string{"--connections=-1", "--max-vips=0"}, "--max-vips is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := command(noEnvironment, strings.NewReader(""), &out, &out)
			cmd.SetArgs(test.args)
			err := cmd.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that says %s", err, test.want)
			}
		})
	}
}

func TestNodeNameFromEnvironment(t *testing.T) {
	var out bytes.Buffer
	cmd := command(func(name string) string {
		if name == "NODE_NAME" {
			return "node1"
		}
		return ""
	}, strings.NewReader(""), &out, &out)
	if got := cmd.Flags().Lookup("node-name").DefValue; got != "node1" {
		t.Errorf("node name %q, want node1", got)
	}
}
