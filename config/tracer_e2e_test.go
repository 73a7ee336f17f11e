// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package config

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const (
	// notPlaced is the error about a pod without a node, after roles and policies have permitted the
	// request.
	notPlaced = "does not have a host assigned"
	byPolicy  = "permitted commands are"
)

// testTracer runs commands with the Role millrace-tracer and as an administrator of the namespace.
func testTracer(t *testing.T, server *controlplane.Server, admin client.Client) {
	pod := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"spec": map[string]any{
			"serviceAccountName":           "millrace-agent",
			"automountServiceAccountToken": false,
			"containers":                   []any{map[string]any{"name": "lbagent", "image": "lbagent"}},
		},
	}}
	pod.SetName("agent")
	pod.SetNamespace("millrace-system")
	if err := admin.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	bind(t, admin, "tracer", "millrace-tracer")
	changes := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
		"rules": []any{
			map[string]any{"apiGroups": []any{""}, "resources": []any{"pods/exec"}, "verbs": []any{"create"}},
			map[string]any{"apiGroups": []any{"apps"}, "resources": []any{"daemonsets"}, "verbs": []any{"update"}},
		},
	}}
	changes.SetName("changes-daemonsets")
	changes.SetNamespace("millrace-system")
	if err := admin.Create(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	bind(t, admin, "operations", "changes-daemonsets")
	refused := func(ctx context.Context, user, reason string, command ...string) error {
		text, err := execute(ctx, as(server, user), command)
		if err != nil {
			return err
		}
		if !strings.Contains(text, reason) {
			return fmt.Errorf("%s runs %q: %s, want %q", user, command, text, reason)
		}
		return nil
	}
	eventually(t, "a trace", func(ctx context.Context) error {
		return refused(ctx, "tracer", notPlaced, "/lbagent", "trace", "198.51.100.1:1", "203.0.113.1:80", "--until-eof")
	})
	eventually(t, "a cleanup", func(ctx context.Context) error {
		return refused(ctx, "tracer", byPolicy, "/lbagent", "cleanup")
	})
	for _, command := range []string{"drops", "top", "vips", "bgp", "duplicates", "history", "preflight"} {
		if err := refused(t.Context(), "tracer", notPlaced, "/lbagent", command, "--until-eof"); err != nil {
			t.Error(err)
		}
	}
	for _, command := range [][]string{
		{"/lbagent"},
		{"/lbagent", "dump"},
		{"/lbagent", "--pin-root=/sys/fs/bpf/other", "cleanup"},
		{"/lbagent", "top", "--socket", "/run/other.sock"},
		{"/lbagent", "top", "--socket=/run/other.sock"},
		{"/lbagent", "trace", "--pin-root=/sys/fs/bpf/other"},
		{"/lbagent", "preflight", "--answer"},
		{"/lbagent", "preflight", "--node=a=203.0.113.1"},
		{"lbagent", "drops"},
		{"/bin/sh", "-c", "/lbagent drops"},
	} {
		if err := refused(t.Context(), "tracer", byPolicy, command...); err != nil {
			t.Error(err)
		}
	}
	if err := refused(t.Context(), "operations", notPlaced, "/lbagent", "cleanup"); err != nil {
		t.Error(err)
	}
}

func bind(t *testing.T, admin client.Client, user, role string) {
	t.Helper()
	binding := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}},
	}}
	binding.SetName(user)
	binding.SetNamespace("millrace-system")
	if err := admin.Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
}

func as(server *controlplane.Server, user string) *rest.Config {
	config := server.Admin()
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	return config
}

func execute(ctx context.Context, config *rest.Config, command []string) (string, error) {
	connection, err := rest.HTTPClientFor(config)
	if err != nil {
		return "", err
	}
	query := url.Values{"command": command, "container": {"lbagent"}, "stdout": {"true"}}
	target := config.Host + "/api/v1/namespaces/millrace-system/pods/agent/exec?" + query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, nil)
	if err != nil {
		return "", err
	}
	response, err := connection.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var status struct{ Message string }
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
		return "", fmt.Errorf("answer with status %s: %w", response.Status, err)
	}
	return status.Message, nil
}
