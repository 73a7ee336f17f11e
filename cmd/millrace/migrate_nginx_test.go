// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMigrateIngressNginx(t *testing.T) {
	const golden = "testdata/ingress-nginx.golden"
	var out, complaints bytes.Buffer
	args := []string{"millrace", "migrate", "ingress-nginx", "--kubeconfig", "/nonexistent"}
	code := run(t.Context(), environment{args: append(args, "testdata/ingress-nginx.yaml"), stdout: &out, stderr: &complaints, width: 100})
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
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	const ingress = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: a, annotations: {nginx.ingress.kubernetes.io/"
	const service = "\n---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 80}]}"
	const spec = "\nspec: {rules: [{http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: %, port: {number: 80}}}}]}}]}"
	for text, want := range map[string]int{
		"":                                     exitOK,
		"apiVersion: v1\nkind: Pod":            exitOK,
		ingress + "ssl-redirect: 'true'}}":     exitOK,
		ingress + "server-snippet: deny all}}": exitProblems,
		"]":                                    exitProblems,
		// Services are assumed only if the input has no Service.
		ingress + "ssl-redirect: 'true'}}" + strings.Replace(spec, "%", "s", 1) + service: exitOK,
		ingress + "ssl-redirect: 'true'}}" + strings.Replace(spec, "%", "t", 1) + service: exitProblems,
		ingress + "ssl-redirect: 'true'}}" + strings.Replace(spec, "%", "t", 1):           exitOK,
	} {
		out.Reset()
		code := run(t.Context(), environment{args: args, stdin: strings.NewReader(text), stdout: &out, stderr: &complaints})
		if code != want {
			t.Errorf("%q: exit code %d, want %d: %s", text, code, want, &out)
		}
	}
}
