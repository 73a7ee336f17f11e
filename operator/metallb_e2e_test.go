// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package operator_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestMetalLB migrates Services from MetalLB and back. No address changes, and while both run they do not
// overwrite each other.
func TestMetalLB(t *testing.T) {
	e := newEnvironment(t)
	stop := e.metalLB(t)
	services := e.servicesOfMetalLB(t)
	given := e.givenTo(t, services)

	e.migrate(t, "metallb", "ipaddresspools", "-A")
	flags := []string{"--default-class", "--annotations-of=metallb"}
	operator := e.run(t, append(flags, "--adopt-only")...)
	e.claimed(t, services, given)
	e.atRest(t, services)
	e.unchanged(t, services, given)

	// While both run, MetalLB assigns new addresses and Millrace adopts them.
	late := e.service(t, "late", classless)
	services = append(services, late)
	given = e.givenTo(t, services)
	e.claimed(t, services, given)

	operator.stop(t)
	stop()
	operator = e.run(t, flags...)
	e.claimed(t, services, given)
	after := e.service(t, "after", classless)
	services = append(services, after)
	given = e.givenTo(t, services)
	e.claimed(t, services, given)
	e.unchanged(t, services, given)

	// Back: MetalLB keeps the addresses in statuses.
	operator.stop(t)
	e.runMetalLB(t)
	e.service(t, "back", classless)
	e.atRest(t, services)
	e.unchanged(t, services, given)
}

func (e *environment) servicesOfMetalLB(t *testing.T) []*corev1.Service {
	t.Helper()
	var services []*corev1.Service
	for i := range 8 {
		services = append(services, e.service(t, fmt.Sprintf("plain%d", i), classless))
	}
	for i := range int32(2) {
		key := fmt.Sprintf("key%d", i)
		for port := range int32(2) {
			services = append(services, e.service(t, fmt.Sprintf("shared%d-%d", i, port), classless, onPort(80+port),
				annotated("metallb.io/allow-shared-ip", key)))
		}
		services = append(services,
			e.service(t, fmt.Sprintf("asking%d", i), classless, annotated("metallb.universe.tf/loadBalancerIPs", fmt.Sprintf("203.0.113.%d", 20+i))),
			e.service(t, fmt.Sprintf("special%d", i), classless, annotated("metallb.io/address-pool", "special")),
			e.service(t, fmt.Sprintf("both%d", i), classless, families(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv4Protocol, corev1.IPv6Protocol)),
			e.service(t, fmt.Sprintf("field%d", i), classless, func(service *corev1.Service) {
				service.Spec.LoadBalancerIP = fmt.Sprintf("203.0.113.%d", 24+i)
			}))
	}
	return services
}

func (e *environment) metalLB(t *testing.T) (stop func()) {
	t.Helper()
	crds := filepath.Join(sourcesOf(t, metalLBModule, "go.universe.tf/metallb"), "config", "crd", "bases")
	_, err := e.server.Kubectl(t.Context(), "apply", "--server-side", "-f", crds)
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

func (e *environment) runMetalLB(t *testing.T) (stop func()) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "controller")
	buildOf(t, metalLBModule, "-o", program, "go.universe.tf/metallb/controller")
	kubeconfig, err := e.server.WriteKubeconfig("admin")
	must(t, err)
	return runForeign(t, exec.Command(program, "--kubeconfig="+kubeconfig, "--namespace="+metalLBNamespace, "--port=0",
		"--webhook-mode=disabled", "--disable-cert-rotation", "--log-level=info"))
}
