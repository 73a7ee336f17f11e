// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// migrate converts pools with the command line for the API server, also the conversion's test input.
func (e *environment) migrate(t *testing.T, from string, objects ...string) {
	t.Helper()
	program, directory := filepath.Join(t.TempDir(), "millrace"), t.TempDir()
	buildOf(t, ".", "-o", program, "../cmd/millrace")
	theirs, err := e.server.Kubectl(t.Context(), append([]string{"get", "-o", "yaml"}, objects...)...)
	must(t, err)
	in, out := filepath.Join(directory, "theirs.yaml"), filepath.Join(directory, "millrace.yaml")
	must(t, os.WriteFile(in, theirs, 0o600))
	ours, err := exec.CommandContext(t.Context(), program, "migrate", from, in).Output()
	must(t, err)
	must(t, os.WriteFile(out, ours, 0o600))
	_, err = e.server.Kubectl(t.Context(), "apply", "-f", out)
	must(t, err)
	_, err = e.server.Kubectl(t.Context(), "apply", "--dry-run=server", "-f", "../cmd/millrace/testdata/"+from+".golden.yaml")
	must(t, err)
}

func sourcesOf(t *testing.T, module, path string) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", path)
	list.Dir = module
	sources, err := list.Output()
	must(t, err)
	return strings.TrimSpace(string(sources))
}

func buildOf(t *testing.T, module string, arguments ...string) {
	t.Helper()
	build := exec.CommandContext(t.Context(), "go", append([]string{"build"}, arguments...)...)
	build.Dir = module
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build %q in %s: %v: %s", arguments, module, err, output)
	}
}

func runForeign(t *testing.T, command *exec.Cmd) (stop func()) {
	t.Helper()
	name := filepath.Base(command.Path)
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	must(t, err)
	command.Stdout, command.Stderr = log, log
	must(t, command.Start())
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		must(t, command.Process.Signal(syscall.SIGTERM))
		_ = command.Wait()
		must(t, log.Close())
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			content, _ := os.ReadFile(log.Name())
			t.Logf("log of %s: %s", name, content[max(0, len(content)-8000):])
		}
	})
	return stop
}

func classless(service *corev1.Service) { service.Spec.LoadBalancerClass = nil }

func onPort(port int32) option {
	return func(service *corev1.Service) { service.Spec.Ports[0].Port = port }
}

func (e *environment) givenTo(t *testing.T, services []*corev1.Service) map[string][]string {
	t.Helper()
	given := map[string][]string{}
	eventually(t, func(ctx context.Context) error {
		for _, service := range services {
			if err := e.get(ctx, service); err != nil {
				return err
			}
			if given[service.Name] = ingress(service); len(given[service.Name]) != len(service.Spec.IPFamilies) {
				return fmt.Errorf("addresses of Service %s = %v", service.Name, given[service.Name])
			}
		}
		return nil
	})
	return given
}

func (e *environment) claimed(t *testing.T, services []*corev1.Service, given map[string][]string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		vips := &millracev1beta1.VIPList{}
		if err := e.client.List(ctx, vips); err != nil {
			return err
		}
		claims := map[string][]string{}
		for _, vip := range vips.Items {
			for _, claim := range vip.Spec.Claims {
				claims[claim.Name] = append(claims[claim.Name], vip.Spec.Address)
			}
		}
		for _, service := range services {
			got, want := slices.Sorted(slices.Values(claims[service.Name])), slices.Sorted(slices.Values(given[service.Name]))
			if !slices.Equal(got, want) {
				return errors.Join(fmt.Errorf("Service %s has claims on %v, want %v", service.Name, got, want), e.get(ctx, service),
					fmt.Errorf("conditions = %+v", service.Status.Conditions))
			}
		}
		return nil
	})
}

func (e *environment) unchanged(t *testing.T, services []*corev1.Service, given map[string][]string) {
	t.Helper()
	for _, service := range services {
		must(t, e.get(t.Context(), service))
		if got := ingress(service); !slices.Equal(got, given[service.Name]) {
			t.Errorf("addresses of Service %s = %v, previously %v", service.Name, got, given[service.Name])
		}
		served := meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionServed)
		if served != nil && served.Reason == millracev1beta1.ReasonStatusConflict {
			t.Errorf("status conflict on Service %s: %s", service.Name, served.Message)
		}
	}
}

func (e *environment) atRest(t *testing.T, services []*corev1.Service) {
	t.Helper()
	versions, since := map[string]string{}, time.Now()
	controlplane.Eventually(t, time.Minute, func(ctx context.Context) error {
		for _, service := range services {
			if err := e.get(ctx, service); err != nil {
				return err
			}
			if versions[service.Name] != service.ResourceVersion {
				versions[service.Name], since = service.ResourceVersion, time.Now()
			}
		}
		if idle := time.Since(since); idle < 5*time.Second {
			return fmt.Errorf("a Service was written %s ago", idle)
		}
		return nil
	})
}

func (e *environment) same(t *testing.T, before, now map[string][]string) {
	t.Helper()
	for name, had := range before {
		if !slices.Equal(now[name], had) {
			t.Errorf("addresses of Service %s = %v, previously %v", name, now[name], had)
		}
	}
}
