// SPDX-License-Identifier: Apache-2.0

// Package programtest runs programs with invalid arguments.
package programtest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/cmd/internal/program"
)

// Rejects runs a program with space-separated arguments, and compares the prefix of its error.
func Rejects(t *testing.T, run program.Run, errors map[string]string) {
	t.Helper()
	for arguments, want := range errors {
		var stdout, stderr bytes.Buffer
		err := run(t.Context(), strings.Fields(arguments), &stdout, &stderr)
		if err == nil || !strings.HasPrefix(err.Error(), want) || stdout.Len() > 0 {
			t.Errorf("%q returns error %v and prints %q, want error %q", arguments, err, stdout.String(), want)
		}
	}
}
