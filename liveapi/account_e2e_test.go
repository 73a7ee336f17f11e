// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package liveapi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// testAccount runs commands as a ServiceAccount with ClusterRole view in one namespace.
func testAccount(t *testing.T, e *environment, program string) {
	e.tenantObjects(t)
	e.server.RunController(t, "clusterrole-aggregation-controller")
	kubeconfig := e.accountKubeconfig(t)
	run := func(line string) (printed, complaint string, err error) {
		command := exec.CommandContext(t.Context(), program, append(strings.Fields(line), "--kubeconfig", kubeconfig)...)
		var stdout, stderr strings.Builder
		command.Stdout, command.Stderr = &stdout, &stderr
		err = command.Run()
		return strings.Join(strings.Fields(stdout.String()), " "), stderr.String(), err
	}
	eventually(t, func(context.Context) error {
		printed, complaint, err := run("routes -n shop")
		if err == nil && !strings.Contains(printed, "www.example.com") {
			err = errors.New(printed)
		}
		return errors.Join(err, errorOf(complaint))
	})
	for line, wants := range map[string][]string{
		"status -n shop": {
			"1 of 1 VIPs announced in namespace shop", "Service/late (shop) PoolExhausted",
			"Left out: objects of other namespaces than shop, LBNodeReports, LBNodes, LBPeers, Pods, VIPAdvertisements, VIPPools, VIPs.",
		},
		"vips -n shop":          {webVIP + " shop/web - Cluster 2/3 2 of 3 nodes"},
		"vips shop/web":         {webVIP + " Services SERVICE POLICY READY PORTS shop/web Cluster 2/3 80/TCP"},
		"vips shop/late":        {"Service shop/late has no VIP: PoolExhausted no address is left"},
		"why shop/late":         {"shop/late: it has no VIP: PoolExhausted: no address is left"},
		"why web -n shop":       {"Left out: the history of the nodes, which Role millrace-tracer of namespace millrace-system permits.", "Service shop/web: Killing"},
		"routes -n shop":        {"IngressClass millrace: " + webVIP, "Ingress shop/site", "Left out: objects of other namespaces than shop, GatewayClasses, IngressClasses, Namespaces."},
		"routes -n shop -ojson": {`"hostname": "www.example.com"`},
	} {
		printed, complaint, err := run(line)
		for _, want := range wants {
			if err != nil || complaint != "" || !strings.Contains(printed, want) {
				t.Errorf("millrace %s: %v %s, want %q in\n%s", line, err, complaint, want, printed)
			}
		}
	}
	for line, want := range map[string]string{
		"why shop/wbe":      "no Service shop/wbe; did you mean shop/web?",
		"vips shop/wbe":     "no Service shop/wbe; did you mean shop/web?",
		"status -n office":  "may not list services: ClusterRole millrace-viewer permits it; for namespace office alone, ClusterRole view, bound there",
		"why office/mail":   "in namespace office: ClusterRole view, bound in namespace office, permits it",
		"vips -w -n shop":   "--watch requires ClusterRole millrace-viewer, bound for the whole cluster",
		"drain node-a":      "may not list pods in namespace millrace-system: Role millrace-viewer of namespace millrace-system permits it",
		"routes -n office ": "may not list services: ClusterRole millrace-viewer permits it; for namespace office alone",
	} {
		if printed, complaint, err := run(line); err == nil || !strings.Contains(complaint, want) {
			t.Errorf("millrace %s: %v, want %q, not %q\n%s", line, err, want, complaint, printed)
		}
	}
}

func errorOf(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// tenantObjects creates a Service with an address, a Service that waits for one, an Event and an Ingress in
// namespace shop.
func (e *environment) tenantObjects(t *testing.T) {
	t.Helper()
	e.client.MakeOf(t, "rbac/viewer.yaml")
	web := &corev1.Service{}
	must(t, e.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, web))
	late := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "late"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new(millracev1beta1.Class), Ports: []corev1.ServicePort{{Port: 80}},
		},
	}
	e.create(t, late)
	for service, status := range map[*corev1.Service]metav1.ConditionStatus{web: metav1.ConditionTrue, late: metav1.ConditionFalse} {
		service.Status.Conditions = []metav1.Condition{{
			Type: millracev1beta1.ConditionAddressAssigned, Status: status, Reason: "PoolExhausted", Message: "no address is left",
			LastTransitionTime: metav1.Now(),
		}}
		must(t, e.client.Status().Update(t.Context(), service))
	}
	e.create(t, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "killing"}, Type: "Normal", Reason: "Killing", Message: "Stopping container",
		InvolvedObject: corev1.ObjectReference{Kind: "Service", Namespace: "shop", Name: "web"}, LastTimestamp: metav1.Now(),
	})
	prefix := networkingv1.PathTypePrefix
	ingress := &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "site"},
		Spec: networkingv1.IngressSpec{IngressClassName: new("millrace"), Rules: []networkingv1.IngressRule{{
			Host: "www.example.com",
			IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
				Path: "/", PathType: &prefix,
				Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
					Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80},
				}},
			}}}},
		}}},
	}
	e.create(t, ingress)
	ingress.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: webVIP}}
	must(t, e.client.Status().Update(t.Context(), ingress))
}

func (e *environment) accountKubeconfig(t *testing.T) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "developer"}}
	e.create(t, account)
	e.create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "developer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "shop", Name: "developer"}},
	})
	request := &authenticationv1.TokenRequest{}
	must(t, e.client.SubResource("token").Create(t.Context(), account, request))
	template, err := e.server.WriteKubeconfig(tenant)
	must(t, err)
	text, err := os.ReadFile(template)
	must(t, err)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "token: "+tenant, "token: "+request.Status.Token)), 0o600))
	if !strings.Contains(string(text), "token: "+tenant) {
		t.Fatal(fmt.Errorf("no token in %s", template))
	}
	return file
}
