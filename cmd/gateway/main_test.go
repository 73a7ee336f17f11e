// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/millrace-lb/millrace/cmd/internal/program/programtest"
)

func TestRun(t *testing.T) {
	programtest.Rejects(t, run, map[string]string{
		"":                 "no image for proxies: set --proxy-image, or --pod-name in a cluster",
		"--proxy-cpu=much": `invalid value "much" for flag -proxy-cpu`,
		"--kubeconfig=/nonexistent --proxy-image=x": "configure the API client: ",
	})
}
