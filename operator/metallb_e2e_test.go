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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// TestMetalLB takes the Services of MetalLB over, from its own controller, and gives them back: shared
// ones, ones that ask for an address or a pool, and ones of both families. No address changes, and
// while both run neither writes again and again.
func TestMetalLB(t *testing.T) {
	e := newEnvironment(t)
	stop := e.metalLB(t)
	services := e.servicesOfMetalLB(t)
	given := e.givenTo(t, services)

	e.migrate(t)
	flags := []string{"--default-class", "--annotations-of=metallb"}
	operator := e.run(t, append(flags, "--adopt")...)
	e.claimed(t, services, given)
	e.atRest(t, services)
	e.unchanged(t, services, given)

	// While both run MetalLB serves what is new, and Millrace follows.
	late := e.service(t, "late", ofMetalLB)
	services = append(services, late)
	given = e.givenTo(t, services)
	e.claimed(t, services, given)

	// MetalLB goes, and Millrace gives addresses of its own.
	operator.stop(t)
	stop()
	operator = e.run(t, flags...)
	e.claimed(t, services, given)
	after := e.service(t, "after", ofMetalLB)
	services = append(services, after)
	given = e.givenTo(t, services)
	e.claimed(t, services, given)
	e.unchanged(t, services, given)

	// And back: MetalLB keeps what the statuses say.
	operator.stop(t)
	e.runMetalLB(t)
	e.service(t, "back", ofMetalLB)
	e.atRest(t, services)
	e.unchanged(t, services, given)
}

// migrate makes pools of ours of MetalLB's, by the command line. What that makes of all kinds of
// objects, the API server takes, too.
func (e *environment) migrate(t *testing.T) {
	t.Helper()
	program, directory := filepath.Join(t.TempDir(), "millrace"), t.TempDir()
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../cmd/millrace").CombinedOutput(); err != nil {
		t.Fatalf("building the command line: %v: %s", err, output)
	}
	theirs, err := e.server.Kubectl(t.Context(), "get", "ipaddresspools", "-A", "-o", "yaml")
	must(t, err)
	in, out := filepath.Join(directory, "metallb.yaml"), filepath.Join(directory, "millrace.yaml")
	must(t, os.WriteFile(in, theirs, 0o600))
	ours, err := exec.CommandContext(t.Context(), program, "migrate", "metallb", in).Output()
	must(t, err)
	must(t, os.WriteFile(out, ours, 0o600))
	_, err = e.server.Kubectl(t.Context(), "apply", "-f", out)
	must(t, err)
	_, err = e.server.Kubectl(t.Context(), "apply", "--dry-run=server", "-f", "../cmd/millrace/testdata/metallb.golden.yaml")
	must(t, err)
}

func ofMetalLB(service *corev1.Service) { service.Spec.LoadBalancerClass = nil }

func onPort(port int32) option {
	return func(service *corev1.Service) { service.Spec.Ports[0].Port = port }
}

// servicesOfMetalLB are twenty of all kinds.
func (e *environment) servicesOfMetalLB(t *testing.T) []*corev1.Service {
	t.Helper()
	var services []*corev1.Service
	for i := range 8 {
		services = append(services, e.service(t, fmt.Sprintf("plain%d", i), ofMetalLB))
	}
	for i := range int32(2) {
		key := fmt.Sprintf("key%d", i)
		for port := range int32(2) {
			services = append(services, e.service(t, fmt.Sprintf("shared%d-%d", i, port), ofMetalLB, onPort(80+port),
				annotated("metallb.io/allow-shared-ip", key)))
		}
		services = append(services,
			e.service(t, fmt.Sprintf("asking%d", i), ofMetalLB, annotated("metallb.universe.tf/loadBalancerIPs", fmt.Sprintf("203.0.113.%d", 20+i))),
			e.service(t, fmt.Sprintf("special%d", i), ofMetalLB, annotated("metallb.io/address-pool", "special")),
			e.service(t, fmt.Sprintf("both%d", i), ofMetalLB, families(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv4Protocol, corev1.IPv6Protocol)),
			e.service(t, fmt.Sprintf("field%d", i), ofMetalLB, func(service *corev1.Service) {
				service.Spec.LoadBalancerIP = fmt.Sprintf("203.0.113.%d", 24+i)
			}))
	}
	return services
}

// givenTo waits until all Services have addresses, and returns them.
func (e *environment) givenTo(t *testing.T, services []*corev1.Service) map[string][]string {
	t.Helper()
	given := map[string][]string{}
	eventually(t, func(ctx context.Context) error {
		for _, service := range services {
			if err := e.get(ctx, service); err != nil {
				return err
			}
			if given[service.Name] = ingress(service); len(given[service.Name]) != len(service.Spec.IPFamilies) {
				return fmt.Errorf("Service %s has %v", service.Name, given[service.Name])
			}
		}
		return nil
	})
	return given
}

// claimed waits until the Services have claims on exactly these addresses.
func (e *environment) claimed(t *testing.T, services []*corev1.Service, given map[string][]string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		vips := &millracev1alpha1.VIPList{}
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
					fmt.Errorf("its conditions are %+v", service.Status.Conditions))
			}
		}
		return nil
	})
}

// unchanged checks that the statuses have the same addresses, and that nobody fights for them.
func (e *environment) unchanged(t *testing.T, services []*corev1.Service, given map[string][]string) {
	t.Helper()
	for _, service := range services {
		must(t, e.get(t.Context(), service))
		if got := ingress(service); !slices.Equal(got, given[service.Name]) {
			t.Errorf("Service %s has %v, had %v", service.Name, got, given[service.Name])
		}
		served := meta.FindStatusCondition(service.Status.Conditions, millracev1alpha1.ConditionServed)
		if served != nil && served.Reason == millracev1alpha1.ReasonStatusContested {
			t.Errorf("the status of Service %s is contested: %s", service.Name, served.Message)
		}
	}
}

// atRest waits until no Service has been written for some seconds.
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
		if quiet := time.Since(since); quiet < 5*time.Second {
			return fmt.Errorf("a Service was written %s ago", quiet)
		}
		return nil
	})
}

// metalLB installs MetalLB's kinds and pools and runs its controller.
func (e *environment) metalLB(t *testing.T) (stop func()) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "go.universe.tf/metallb")
	list.Dir = metalLBModule
	sources, err := list.Output()
	must(t, err)
	crds := filepath.Join(strings.TrimSpace(string(sources)), "config", "crd", "bases")
	_, err = e.server.Kubectl(t.Context(), "apply", "--server-side", "-f", crds)
	must(t, err)
	_, err = e.server.Kubectl(t.Context(), "wait", "--for=condition=Established", "crd", "--all")
	must(t, err)
	e.client.MakeNamespaces(t, metalLBNamespace)
	e.poolOfMetalLB(t, "public", true, "203.0.113.0/27", "2001:db8:cafe::/120")
	e.poolOfMetalLB(t, "special", false, "198.51.100.0/28")
	return e.runMetalLB(t)
}

const (
	metalLBModule    = "../hack/tools/metallb"
	metalLBNamespace = "metallb-system"
)

func (e *environment) poolOfMetalLB(t *testing.T, name string, auto bool, addresses ...any) {
	t.Helper()
	must(t, e.client.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool",
		"metadata": map[string]any{"name": name, "namespace": metalLBNamespace},
		"spec":     map[string]any{"addresses": addresses, "autoAssign": auto},
	}}, &client.CreateOptions{}))
}

// runMetalLB runs MetalLB's controller until stop is called, or the test ends.
func (e *environment) runMetalLB(t *testing.T) (stop func()) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "controller")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "go.universe.tf/metallb/controller")
	build.Dir = metalLBModule
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building MetalLB's controller: %v: %s", err, output)
	}
	kubeconfig, err := e.server.WriteKubeconfig("admin")
	must(t, err)
	log, err := os.Create(filepath.Join(t.TempDir(), "metallb.log"))
	must(t, err)
	command := exec.Command(program, "--kubeconfig="+kubeconfig, "--namespace="+metalLBNamespace, "--port=0",
		"--webhook-mode=disabled", "--disable-cert-rotation", "--log-level=info")
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{}
	must(t, command.Start())
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		must(t, command.Process.Signal(syscall.SIGTERM))
		// How it ends is its own business.
		_ = command.Wait()
		must(t, log.Close())
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			content, _ := os.ReadFile(log.Name())
			t.Logf("MetalLB's controller logged: %s", content[max(0, len(content)-8000):])
		}
	})
	return stop
}
