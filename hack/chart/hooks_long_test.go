// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package chart

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const node = `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1", "labels": {"kubernetes.io/os": "linux"}}}`

const held = `{"apiVersion": "v1", "kind": "Service",
  "metadata": {"namespace": "default", "name": "web", "finalizers": ["millrace.io/address"]},
  "spec": {"ports": [{"port": 80}]}}`

// hookRunner runs the Jobs of the hooks with the permissions of their ServiceAccount.
type hookRunner struct {
	server              *controlplane.Server
	directory, operator string
	kubeconfig          string

	mu     sync.Mutex
	output string
}

func newHookRunner(t *testing.T) *hookRunner {
	t.Helper()
	h := &hookRunner{server: controlplane.Start(t, "../.."), directory: t.TempDir()}
	h.operator = filepath.Join(h.directory, "operator")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", h.operator, "../../cmd/operator").CombinedOutput(); err != nil {
		t.Fatalf("building the operator: %v: %s", err, output)
	}
	var err error
	h.kubeconfig, err = h.server.WriteAdminKubeconfig()
	controlplane.Must(t, err)
	h.server.RunController(t, "daemonset-controller,garbage-collector-controller,serviceaccount-controller")
	h.apply(t, node)
	return h
}

func (h *hookRunner) kubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	output, err := h.server.Kubectl(t.Context(), arguments...)
	controlplane.Must(t, err)
	return string(output)
}

// apply applies a manifest like a tool that does not support Helm's hooks.
func (h *hookRunner) apply(t *testing.T, manifest string) {
	t.Helper()
	file := filepath.Join(h.directory, "manifest.yaml")
	controlplane.Must(t, os.WriteFile(file, []byte(manifest), 0o600))
	h.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", file)
}

func (h *hookRunner) helm(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	out, complaints, err := helm(t, append(arguments, "--namespace=kube-system", "--kubeconfig="+h.kubeconfig)...)
	return out + complaints, err
}

func (h *hookRunner) mustHelm(t *testing.T, arguments ...string) string {
	t.Helper()
	out, err := h.helm(t, arguments...)
	if err != nil {
		t.Fatalf("helm %s: %v: %s", arguments, err, out)
	}
	return out
}

func (h *hookRunner) run(ctx context.Context, job string) (string, error) {
	text, err := h.server.Kubectl(ctx, "-n", "millrace-system", "get", "job", job, "-o", "jsonpath={.spec.template.spec.containers[0].args}")
	if err != nil {
		return "", err
	}
	var arguments []string
	if err := json.Unmarshal(text, &arguments); err != nil {
		return "", err
	}
	token, err := h.server.Kubectl(ctx, "-n", "millrace-system", "create", "token", "millrace-uninstall")
	if err != nil {
		return "", err
	}
	config, err := clientcmd.LoadFromFile(h.kubeconfig)
	if err != nil {
		return "", err
	}
	for _, user := range config.AuthInfos {
		user.Token = strings.TrimSpace(string(token))
	}
	directory, err := os.MkdirTemp(h.directory, job)
	if err != nil {
		return "", err
	}
	file := filepath.Join(directory, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return "", err
	}
	output, err := exec.CommandContext(ctx, h.operator, append(arguments, "--kubeconfig="+file, "--timeout=1m")...).CombinedOutput()
	return string(output), err
}

func (h *hookRunner) jobs(ctx context.Context) []string {
	jobs, _ := h.server.Kubectl(ctx, "-n", "millrace-system", "get", "jobs", "-o", `jsonpath={range .items[*]}{.metadata.name}/{.metadata.uid}{"\n"}{end}`)
	return strings.Fields(string(jobs))
}

// play runs Helm's Jobs and the cleanup pods, except for the Jobs in before, until ctx is done.
func (h *hookRunner) play(ctx context.Context, before []string) {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	done := map[string]bool{}
	for _, job := range before {
		done[job] = true
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, job := range h.jobs(ctx) {
			if name, _, _ := strings.Cut(job, "/"); !done[job] {
				done[job] = true
				go h.finish(ctx, name)
			}
		}
		for _, pod := range h.pods(ctx, "cleanup") {
			_, _ = h.server.Kubectl(ctx, "-n", "millrace-system", "patch", pod, "--subresource=status", "--type=merge",
				"-p", `{"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}`)
		}
	}
}

func (h *hookRunner) finish(ctx context.Context, job string) {
	output, err := h.run(ctx, job)
	h.mu.Lock()
	h.output += output
	h.mu.Unlock()
	now := time.Now().UTC().Format(time.RFC3339)
	counted, conditions := fmt.Sprintf(`"completionTime": %q, "succeeded": 1`, now), [2]string{"SuccessCriteriaMet", "Complete"}
	if err != nil {
		counted, conditions = `"failed": 1`, [2]string{"FailureTarget", "Failed"}
	}
	status := fmt.Sprintf(`{"status": {"startTime": %q, %s, "conditions": [{"type": %q, "status": "True"}, {"type": %q, "status": "True"}]}}`,
		now, counted, conditions[0], conditions[1])
	_, _ = h.server.Kubectl(ctx, "-n", "millrace-system", "patch", "job", job, "--subresource=status", "--type=merge", "-p", status)
}

func (h *hookRunner) uninstall(t *testing.T) (string, error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	played, before := make(chan struct{}), h.jobs(ctx)
	go func() {
		defer close(played)
		h.play(ctx, before)
	}()
	out, err := h.helm(t, "uninstall", "millrace", "--timeout=2m")
	stop()
	<-played
	h.mu.Lock()
	defer h.mu.Unlock()
	output := h.output
	h.output = ""
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return output, err
}

func (h *hookRunner) pods(ctx context.Context, component string) []string {
	names, _ := h.server.Kubectl(ctx, "-n", "millrace-system", "get", "pods", "-l", "app.kubernetes.io/component="+component, "-o", "name")
	return strings.Fields(string(names))
}

// changesNothing runs both hooks, and checks that they print want and change nothing.
func (h *hookRunner) changesNothing(t *testing.T, want string) {
	t.Helper()
	const state = `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.metadata.generation}{"\n"}{end}`
	workloads := func() string {
		return h.kubectl(t, "-n", "millrace-system", "get", "daemonsets,deployments", "-o", state)
	}
	controlplane.Eventually(t, time.Minute, func(ctx context.Context) error {
		if agents := h.pods(ctx, "agent"); len(agents) != 1 {
			return fmt.Errorf("the agents have the pods %s, want 1", agents)
		}
		return nil
	})
	before := workloads()
	for _, job := range []string{"millrace-uninstall", "millrace-cleaned"} {
		if output, err := h.run(t.Context(), job); err != nil || !strings.Contains(output, want) {
			t.Errorf("%s: %v: printed %q, want %q", job, err, output, want)
		}
	}
	if after := workloads(); after != before || !strings.Contains(after, "millrace-agent") {
		t.Errorf("the workloads were\n%s\nand are\n%s", before, after)
	}
	if pods := h.pods(t.Context(), "cleanup"); len(pods) > 0 {
		t.Errorf("the cleanup has the pods %s", pods)
	}
}

// TestHooks checks that the pre-delete hooks change nothing if another tool applies them as ordinary objects.
func TestHooks(t *testing.T) {
	h, chart := newHookRunner(t), onDisk(t)
	applied := h.mustHelm(t, "template", "millrace", chart)
	h.apply(t, applied)
	h.changesNothing(t, "nothing to do: there is no Helm release millrace in namespace kube-system")

	h.mustHelm(t, "install", "millrace", chart, "--take-ownership", "--force-conflicts")
	h.apply(t, applied)
	h.changesNothing(t, "revision 1 of the Helm release kube-system/millrace is deployed, not uninstalling")

	h.apply(t, held)
	output, err := h.uninstall(t)
	if err == nil || !strings.Contains(output, "1 Services have addresses of Millrace: default/web") {
		t.Fatalf("helm uninstall: %v: printed %q", err, output)
	}
	h.mustHelm(t, "rollback", "millrace", "1", "--force-conflicts")
	h.apply(t, applied)
	h.changesNothing(t, "revision 2 of the Helm release kube-system/millrace is deployed, not uninstalling")

	h.kubectl(t, "patch", "service", "web", "--type=merge", "-p", `{"metadata": {"finalizers": []}}`)
	h.kubectl(t, "delete", "service", "web")
	output, err = h.uninstall(t)
	if want := "millrace-agent has ended\nall nodes are clean\n"; err != nil || output != want {
		t.Errorf("helm uninstall: %v: printed %q, want %q", err, output, want)
	}
	if left := h.pods(t.Context(), "agent"); len(left) > 0 {
		t.Errorf("pods of agents are left: %s", left)
	}
}
