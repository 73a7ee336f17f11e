// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package operator_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	kubeVIPModule     = "../hack/tools/kube-vip"
	kubeVIPAnnotation = "kube-vip.io/loadbalancerIPs"
)

// TestKubeVIP migrates Services from kube-vip's cloud provider, which writes its choice like a user's
// request, and back. No address changes, and neither writes when idle.
func TestKubeVIP(t *testing.T) {
	e := newEnvironment(t)
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubevip"},
		Data: map[string]string{
			"cidr-" + namespace:    "203.0.113.0/27,2001:db8:cafe::/120",
			"range-global":         "198.51.100.1-198.51.100.14",
			"skip-end-ips-in-cidr": "true",
		},
	}
	must(t, client.IgnoreAlreadyExists(e.client.Create(t.Context(), config)))
	stop := e.runKubeVIP(t)
	services := e.servicesOfKubeVIP(t)
	given := e.requestsOf(t, services)

	stop()
	e.migrate(t, "kube-vip", "configmap", config.Name, "--namespace="+config.Namespace)
	operator := e.run(t, "--default-class", "--annotations-of=kube-vip")
	e.claimed(t, services, given)
	after := e.service(t, "after", classless)
	services = append(services, after)
	now := e.givenTo(t, services)
	e.same(t, given, now)
	e.atRest(t, services)
	e.unchanged(t, services, now)

	// Back: Services must request Millrace's addresses, or the provider chooses others.
	operator.stop(t)
	must(t, e.get(t.Context(), after))
	after.Annotations = map[string]string{kubeVIPAnnotation: strings.Join(now[after.Name], ",")}
	must(t, e.client.Update(t.Context(), after))
	e.runKubeVIP(t)
	back := e.service(t, "back", classless)
	e.same(t, now, e.requestsOf(t, append(services, back)))
	e.atRest(t, services)
	e.unchanged(t, services, now)
}

func (e *environment) servicesOfKubeVIP(t *testing.T) []*corev1.Service {
	t.Helper()
	var services []*corev1.Service
	for i := range 2 {
		services = append(services,
			e.service(t, fmt.Sprintf("asking%d", i), classless, annotated(kubeVIPAnnotation, fmt.Sprintf("203.0.113.%d", 20+i))),
			e.service(t, fmt.Sprintf("both%d", i), classless, families(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv4Protocol, corev1.IPv6Protocol)),
			e.service(t, fmt.Sprintf("plain%d", i), classless),
			e.service(t, fmt.Sprintf("global%d", i), classless, in(otherNamespace)))
	}
	return services
}

func (e *environment) requestsOf(t *testing.T, services []*corev1.Service) map[string][]string {
	t.Helper()
	requests := map[string][]string{}
	eventually(t, func(ctx context.Context) error {
		for _, service := range services {
			if err := e.get(ctx, service); err != nil {
				return err
			}
			requests[service.Name] = strings.Split(service.Annotations[kubeVIPAnnotation], ",")
			if requests[service.Name][0] == "" || len(requests[service.Name]) != len(service.Spec.IPFamilies) {
				return fmt.Errorf("requests of Service %s = %v", service.Name, requests[service.Name])
			}
		}
		return nil
	})
	return requests
}

// runKubeVIP starts the provider, which reads the kubeconfig from a home directory.
func (e *environment) runKubeVIP(t *testing.T) (stop func()) {
	t.Helper()
	home := t.TempDir()
	program := filepath.Join(home, "kube-vip-cloud-provider")
	buildOf(t, kubeVIPModule, "-o", program, "github.com/kube-vip/kube-vip-cloud-provider")
	written, err := e.server.WriteKubeconfig("admin")
	must(t, err)
	content, err := os.ReadFile(written)
	must(t, err)
	kubeconfig := filepath.Join(home, ".kube", "config")
	must(t, os.Mkdir(filepath.Dir(kubeconfig), 0o700))
	must(t, os.WriteFile(kubeconfig, content, 0o600))
	command := exec.Command(program, "--OutSideCluster", "--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0")
	command.Env = append(os.Environ(), "HOME="+home)
	return runForeign(t, command)
}
