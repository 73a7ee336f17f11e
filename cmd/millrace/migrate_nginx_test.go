// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestMigrateIngressNginx: what becomes of each annotation, and an exit code that a script can ask.
func TestMigrateIngressNginx(t *testing.T) {
	const golden = "testdata/ingress-nginx.golden"
	var out, complaints bytes.Buffer
	args := []string{"millrace", "migrate", "ingress-nginx"}
	code := run(t.Context(), environment{args: append(args, "testdata/ingress-nginx.yaml"), stdout: &out, stderr: &complaints})
	if code != exitProblems {
		t.Errorf("exit code %d: %s", code, &complaints)
	}
	if *updateMigrated {
		if err := os.WriteFile(golden, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
	const ingress = "kind: Ingress\nmetadata: {name: a, annotations: {nginx.ingress.kubernetes.io/"
	for text, want := range map[string]int{
		"":                                     exitOK,
		"kind: Service":                        exitOK,
		ingress + "ssl-redirect: 'true'}}":     exitOK,
		ingress + "server-snippet: deny all}}": exitProblems,
		"]":                                    exitError,
	} {
		out.Reset()
		code := run(t.Context(), environment{args: args, stdin: strings.NewReader(text), stdout: &out, stderr: &complaints})
		if code != want {
			t.Errorf("%q: exit code %d, want %d: %s", text, code, want, &out)
		}
	}
}
