// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/millrace-lb/millrace/cmd/internal/program/programtest"
)

func TestRun(t *testing.T) {
	programtest.Rejects(t, run, map[string]string{
		"--controller-ca=x --token=y":      "--controller is required: ",
		"--controller=x --controller-ca=x": "--token is required: ",
	})
}
