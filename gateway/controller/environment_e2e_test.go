// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package controller_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/credentials"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/controller"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/distribution"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const (
	// gatewayUser is the service account of config/rbac/gateway, with the installed permissions.
	gatewayUser     = "system:serviceaccount:millrace-system:millrace-gateway"
	systemNamespace = "millrace-system"
	namespace       = "shop"
	waitTimeout     = 20 * time.Second
)

var shared = types.NamespacedName{Namespace: systemNamespace, Name: "ingressclass-millrace"}

type environment struct {
	server *controlplane.Server
	client *controlplane.Objects
}

func newEnvironment(t *testing.T, users ...string) *environment {
	t.Helper()
	ctrllog.SetLogger(logr.Discard())
	e := &environment{server: controlplane.Start(t, "../..", append(users, gatewayUser)...)}
	e.client = e.server.Install(t, e.server.Admin(), client.Options{FieldValidation: "Strict"}, gatewayv1.Install)
	e.client.MakeNamespaces(t, systemNamespace, namespace)
	e.client.MakeOf(t, "rbac/gateway/role.yaml", "rbac/gateway/role_binding.yaml", "rbac/gateway/namespace_roles.yaml",
		"rbac/gateway/all_namespaces.yaml", "gateway/write_policy.yaml", "gateway/ingress_class.yaml")
	return e
}

func (e *environment) create(t *testing.T, object client.Object) {
	t.Helper()
	e.client.Make(t, object)
}

func (e *environment) run(t *testing.T, change func(*controller.Config)) (address string, stop func()) {
	t.Helper()
	address = fmt.Sprintf("127.0.0.1:%d", controlplane.FreePort(t))
	configuration := controller.Config{
		REST: e.server.User(gatewayUser), Namespace: systemNamespace, LeaderElect: true,
		ServeAddress: address, ControllerAddress: address, ProxyImage: "example.com/lbproxy:v1",
		MetricsAddress: "0", ProbeAddress: "0",
	}
	if change != nil {
		change(&configuration)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done, logs := make(chan error, 1), &controlplane.Log{}
	go func() {
		done <- controller.Run(ctx, configuration, logr.FromSlogHandler(slog.NewJSONHandler(logs, nil)))
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the controller exited with %v:\n%s", err, logs)
			}
		case <-time.After(waitTimeout):
			t.Errorf("the controller does not exit:\n%s", logs)
		}
		for line := range strings.Lines(logs.String()) {
			// In namespaces without permission the log contains the command.
			if strings.Contains(line, "forbidden") && !strings.Contains(line, "kubectl create rolebinding") || strings.Contains(line, "panic") {
				t.Errorf("the controller logged: %s", line)
			}
		}
		if t.Failed() {
			t.Logf("the controller at %s output:\n%s", address, logs)
		}
	})
	t.Cleanup(stop)
	return address, stop
}

func must(t testing.TB, err error) {
	t.Helper()
	controlplane.Must(t, err)
}

func eventually(t *testing.T, condition func(context.Context) error) {
	t.Helper()
	controlplane.Eventually(t, waitTimeout, condition)
}

func (e *environment) ingress(t *testing.T, name, host string) *networkingv1.Ingress {
	t.Helper()
	e.create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	})
	e.create(t, slice(name, "198.18.0.1"))
	class, prefix := "millrace", networkingv1.PathTypePrefix
	ingress := &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: networkingv1.IngressSpec{
			IngressClassName: &class,
			Rules: []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
				HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
					Path: "/", PathType: &prefix, Backend: networkingv1.IngressBackend{
						Service: &networkingv1.IngressServiceBackend{Name: name, Port: networkingv1.ServiceBackendPort{Name: "http"}},
					},
				}}},
			}}},
		},
	}
	e.create(t, ingress)
	return ingress
}

func slice(service string, addresses ...string) *discoveryv1.EndpointSlice {
	name, port, protocol := "http", int32(8080), corev1.ProtocolTCP
	found := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	for _, address := range addresses {
		found.Endpoints = append(found.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return found
}

func (e *environment) await(t *testing.T, object client.Object, name types.NamespacedName) {
	t.Helper()
	eventually(t, func(ctx context.Context) error { return e.client.Get(ctx, name, object) })
}

// assign sets the addresses of a Service like the layer-4 operator.
func (e *environment) assign(t *testing.T, name types.NamespacedName, addresses ...string) {
	t.Helper()
	service := &corev1.Service{}
	e.await(t, service, name)
	before := client.MergeFrom(service.DeepCopy())
	service.Status.LoadBalancer.Ingress = nil
	for _, address := range addresses {
		service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: address})
	}
	must(t, e.client.Status().Patch(t.Context(), service, before))
}

func (e *environment) pod(t *testing.T, of types.NamespacedName, name string) *corev1.Pod {
	t.Helper()
	deployment := &appsv1.Deployment{}
	e.await(t, deployment, of)
	template := deployment.Spec.Template
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: name, Labels: template.Labels}, Spec: template.Spec}
	e.create(t, pod)
	return pod
}

func (e *environment) token(t *testing.T, account types.NamespacedName, audience string, pod *corev1.Pod) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	object := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: account.Name}}
	must(t, e.client.SubResource("token").Create(t.Context(), object, request))
	return request.Status.Token
}

type proxy struct {
	updates chan distribution.Update
	logs    *controlplane.Log
	has     configuration
	refuses atomic.Pointer[string]
}

type configuration map[string]*resource.Resource

func (c configuration) carryOut(update distribution.Update) {
	if update.Whole {
		clear(c)
	}
	for _, name := range update.Removed {
		delete(c, name)
	}
	for _, r := range update.Changed {
		c[r.GetName()] = r
	}
}

func (e *environment) proxy(t *testing.T, address, token string) *proxy {
	t.Helper()
	p := &proxy{updates: make(chan distribution.Update, 1000), logs: &controlplane.Log{}, has: configuration{}}
	e.follow(t, &distribution.Client{
		Address: address,
		Token:   func() (string, error) { return token, nil },
		Apply:   func(update distribution.Update) { p.updates <- update },
		Refused: func() []string {
			if why := p.refuses.Load(); why != nil {
				return []string{*why}
			}
			return nil
		},
		Log: slog.New(slog.NewTextHandler(p.logs, nil)),
	})
	return p
}

func (e *environment) follow(t *testing.T, follower *distribution.Client) {
	t.Helper()
	// The CA is in the ConfigMap of each owner.
	trusted := &corev1.ConfigMapList{}
	roots := x509.NewCertPool()
	eventually(t, func(ctx context.Context) error {
		if err := e.client.List(ctx, trusted, client.MatchingLabels(infrastructure.Selector())); err != nil {
			return err
		}
		if len(trusted.Items) == 0 || !roots.AppendCertsFromPEM([]byte(trusted.Items[0].Data[infrastructure.CAKey])) {
			return fmt.Errorf("no CA in %d ConfigMaps", len(trusted.Items))
		}
		return nil
	})
	follower.Transport = credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "millrace-gateway.millrace-system.svc"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- follower.Run(ctx) }()
	t.Cleanup(func() { cancel(); must(t, <-done) })
}

func (p *proxy) receives(t *testing.T, wanted func(configuration) error) configuration {
	t.Helper()
	deadline := time.After(waitTimeout)
	last := errors.New("no update received")
	for {
		select {
		case update := <-p.updates:
			p.has.carryOut(update)
			if last = wanted(p.has); last == nil {
				return p.has
			}
		case <-deadline:
			t.Fatalf("timeout after %s: %v; log of the client:\n%s", waitTimeout, last, p.logs)
		}
	}
}

// isRefused waits until the server has rejected the client for this reason.
func (p *proxy) isRefused(t *testing.T, why string) {
	t.Helper()
	eventually(t, func(context.Context) error {
		if len(p.updates) > 0 {
			t.Fatalf("unexpected configuration: %v", <-p.updates)
		}
		if !strings.Contains(p.logs.String(), why) {
			return fmt.Errorf("%q was not logged: %s", why, p.logs)
		}
		return nil
	})
}
