// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/millrace-lb/millrace/cmd/internal/program/programtest"
)

func TestRun(t *testing.T) {
	programtest.Rejects(t, run, map[string]string{
		"--agent-port=70000":        "--agent-port: 70000 is not a port",
		"--kubeconfig=/nonexistent": "configure the API client: ",
	})
}
