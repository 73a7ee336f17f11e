// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/cmd/internal/program"
)

func TestRun(t *testing.T) {
	tests := []struct {
		name      string
		arguments []string
		stdout    string
		stderr    string
		err       string
	}{
		{name: "version", arguments: []string{"--version"}, stdout: program.Version(version) + "\n"},
		{name: "help", arguments: []string{"--help"}, stderr: "-leader-elect", err: flag.ErrHelp.Error()},
		{name: "unknown flag", arguments: []string{"--colour"}, stderr: "-default-class", err: "flag provided but not defined: -colour"},
		{name: "argument", arguments: []string{"start"}, err: `unexpected argument "start": all settings are flags`},
		{name: "uninstall without an API server", arguments: []string{"uninstall", "--kubeconfig=/nonexistent"}, err: "finding the API server: "},
		{name: "no API server", arguments: []string{"--kubeconfig=/nonexistent"}, err: "finding the API server: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			err := run(t.Context(), test.arguments, &stdout, &stderr)
			if err == nil {
				err = errors.New("")
			}
			if !strings.HasPrefix(err.Error(), test.err) || test.err == "" && err.Error() != "" {
				t.Errorf("error is %v, want %q", err, test.err)
			}
			if stdout.String() != test.stdout || !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("printed %q and %q", stdout.String(), stderr.String())
			}
		})
	}
}
