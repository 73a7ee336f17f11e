// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package operator_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const (
	ciliumModule    = "../hack/tools/cilium"
	ciliumNamespace = "kube-system"
	kindCiliumPools = "ciliumloadbalancerippools"
)

// TestCilium migrates Services from Cilium's LB-IPAM and back. No address changes, and while both run they
// do not overwrite each other.
func TestCilium(t *testing.T) {
	e := newEnvironment(t)
	stop := e.cilium(t)
	services := e.servicesOfCilium(t)
	given := e.givenTo(t, services)

	e.migrate(t, "cilium", kindCiliumPools)
	flags := []string{"--default-class", "--annotations-of=cilium"}
	operator := e.run(t, append(flags, "--adopt-only")...)
	e.claimed(t, services, given)
	e.atRest(t, services)
	e.unchanged(t, services, given)
	e.bothConditions(t, services)

	// While both run, Cilium assigns new addresses and Millrace adopts them.
	services = append(services, e.service(t, "late", classless))
	given = e.givenTo(t, services)
	e.claimed(t, services, given)

	// Cilium stops, and Millrace assigns addresses without Cilium's pools.
	operator.stop(t)
	stop()
	stop = e.runCilium(t, "--default-lb-service-ipam=none")
	operator = e.run(t, flags...)
	e.claimed(t, services, given)
	services = append(services, e.service(t, "after", classless))
	given = e.givenTo(t, services)
	e.claimed(t, services, given)
	e.deletePools(t)
	e.atRest(t, services)
	e.unchanged(t, services, given)

	// Back: Cilium keeps the addresses in statuses.
	operator.stop(t)
	stop()
	e.poolsOfCilium(t)
	e.runCilium(t)
	services = append(services, e.service(t, "back", classless))
	now := e.givenTo(t, services)
	e.same(t, given, now)
	e.atRest(t, services)
	e.unchanged(t, services, now)

	// LB-IPAM releases addresses with their pool, hence the order in docs/migrate.md. With shared addresses
	// Cilium 1.18 panics, so this pool has only exclusive ones.
	_, err := e.server.Kubectl(t.Context(), "delete", kindCiliumPools, "special")
	must(t, err)
	for _, service := range services {
		if strings.HasPrefix(service.Name, "special") {
			e.addresses(t, service)
		}
	}
}

// bothConditions checks that each writer preserves the condition of the other, although Cilium writes whole
// statuses.
func (e *environment) bothConditions(t *testing.T, services []*corev1.Service) {
	t.Helper()
	for _, service := range services {
		for _, kind := range []string{"cilium.io/IPAMRequestSatisfied", millracev1beta1.ConditionAddressAssigned} {
			if !meta.IsStatusConditionTrue(service.Status.Conditions, kind) {
				t.Errorf("Service %s: condition %s is not True: %+v", service.Name, kind, service.Status.Conditions)
			}
		}
	}
}

func tier(name string) option {
	return func(service *corev1.Service) { service.Labels = map[string]string{"tier": name} }
}

func (e *environment) servicesOfCilium(t *testing.T) []*corev1.Service {
	t.Helper()
	var services []*corev1.Service
	for i := range 8 {
		services = append(services, e.service(t, fmt.Sprintf("plain%d", i), classless))
	}
	for i := range int32(2) {
		key := fmt.Sprintf("key%d", i)
		for port := range int32(2) {
			services = append(services, e.service(t, fmt.Sprintf("shared%d-%d", i, port), classless, onPort(80+port),
				annotated("lbipam.cilium.io/sharing-key", key)))
		}
		services = append(services,
			e.service(t, fmt.Sprintf("asking%d", i), classless, tier("asked"),
				annotated("lbipam.cilium.io/ips", fmt.Sprintf("198.51.100.%d", 20+i))),
			e.service(t, fmt.Sprintf("field%d", i), classless, tier("asked"), func(service *corev1.Service) {
				service.Spec.LoadBalancerIP = fmt.Sprintf("198.51.100.%d", 24+i)
			}),
			e.service(t, fmt.Sprintf("special%d", i), classless, tier("special")),
			e.service(t, fmt.Sprintf("both%d", i), classless, families(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv4Protocol, corev1.IPv6Protocol)))
	}
	return services
}

func (e *environment) cilium(t *testing.T) (stop func()) {
	t.Helper()
	crds := filepath.Join(sourcesOf(t, ciliumModule, "github.com/cilium/cilium"), "pkg/k8s/apis/cilium.io/client/crds")
	_, err := e.server.Kubectl(t.Context(), "apply", "--server-side", "--recursive", "-f", crds)
	must(t, err)
	_, err = e.server.Kubectl(t.Context(), "wait", "--for=condition=Established", "crd", "--all")
	must(t, err)
	e.inputOfCilium(t)
	e.poolsOfCilium(t)
	return e.runCilium(t)
}

func (e *environment) inputOfCilium(t *testing.T) {
	t.Helper()
	content, err := os.ReadFile("../cmd/millrace/testdata/cilium.yaml")
	must(t, err)
	// The second document has fields that no version of Cilium has.
	known, _, _ := strings.Cut(string(content), "\n---\n")
	file := filepath.Join(t.TempDir(), "cilium.yaml")
	must(t, os.WriteFile(file, []byte(known), 0o600))
	_, err = e.server.Kubectl(t.Context(), "create", "--dry-run=server", "-f", file)
	must(t, err)
}

// poolsOfCilium has a separate pool of requested addresses, because Cilium assigns any free one.
func (e *environment) poolsOfCilium(t *testing.T) {
	t.Helper()
	e.poolOfCilium(t, "public", map[string]any{"matchExpressions": []any{
		map[string]any{"key": "tier", "operator": "NotIn", "values": []any{"special", "asked"}},
	}}, "203.0.113.0/27", "2001:db8:cafe::/120")
	e.poolOfCilium(t, "special", map[string]any{"matchLabels": map[string]any{
		"io.kubernetes.service.namespace": namespace, "tier": "special",
	}}, "198.51.100.0/28")
	e.poolOfCilium(t, "asked", map[string]any{"matchLabels": map[string]any{"tier": "asked"}}, "198.51.100.16/28")
}

func (e *environment) poolOfCilium(t *testing.T, name string, selector map[string]any, cidrs ...string) {
	t.Helper()
	var blocks []any
	for _, cidr := range cidrs {
		blocks = append(blocks, map[string]any{"cidr": cidr})
	}
	must(t, e.client.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cilium.io/v2", "kind": "CiliumLoadBalancerIPPool", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"blocks": blocks, "serviceSelector": selector, "allowFirstLastIPs": "No"},
	}}, &client.CreateOptions{}))
}

func (e *environment) deletePools(t *testing.T) {
	t.Helper()
	_, err := e.server.Kubectl(t.Context(), "delete", kindCiliumPools, "--all")
	must(t, err)
}

func (e *environment) runCilium(t *testing.T, flags ...string) (stop func()) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "cilium-operator")
	buildOf(t, ciliumModule, "-tags", "ipam_provider_operator", "-o", program, "github.com/cilium/cilium/operator")
	kubeconfig, err := e.server.WriteKubeconfig("admin")
	must(t, err)
	// Cilium always creates a socket there and does not remove it.
	const sockets = "/var/run/cilium"
	if _, err := os.Stat(sockets); errors.Is(err, fs.ErrNotExist) {
		t.Cleanup(func() { must(t, os.RemoveAll(sockets)) })
	}
	return runForeign(t, exec.Command(program, append([]string{
		"--k8s-kubeconfig-path=" + kubeconfig, "--k8s-namespace=" + ciliumNamespace, "--skip-crd-creation",
		"--identity-allocation-mode=crd", "--ipam=kubernetes", "--enable-ipv4", "--enable-ipv6", "--kvstore=",
		"--enable-cilium-operator-server-access=", "--enable-gops=false", "--unmanaged-pod-watcher-interval=0", "--synchronize-k8s-nodes=false",
		fmt.Sprintf("--operator-api-serve-addr=127.0.0.1:%d", controlplane.FreePort(t)),
	}, flags...)...))
}
