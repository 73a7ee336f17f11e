// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/millrace-lb/millrace/cmd/internal/program/programtest"
)

func TestRun(t *testing.T) {
	programtest.Rejects(t, run, map[string]string{
		"uninstall --kubeconfig=/nonexistent": "configure the API client: ",
		"--kubeconfig=/nonexistent":           "configure the API client: ",
	})
}
