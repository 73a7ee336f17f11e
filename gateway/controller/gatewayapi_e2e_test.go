// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package controller_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/controller"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const otherNamespace = "millrace-other"

func (e *environment) gatewayAPI(t *testing.T) (remove func()) {
	t.Helper()
	return e.gatewayAPIOf(t, "standard")
}

func (e *environment) gatewayAPIOf(t *testing.T, channel string) (remove func()) {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	must(t, err)
	kinds := envtest.CRDInstallOptions{
		Paths: []string{filepath.Join(strings.TrimSpace(string(out)), "config", "crd", channel)}, ErrorIfPathMissing: true,
	}
	_, err = envtest.InstallCRDs(e.server.Admin(), kinds)
	must(t, err)
	remove = sync.OnceFunc(func() { must(t, envtest.UninstallCRDs(e.server.Admin(), kinds)) })
	t.Cleanup(remove)
	return remove
}

// laterGatewayAPI installs, uses and removes the CRDs while the controller runs.
func laterGatewayAPI(t *testing.T, e *environment) {
	address, _ := e.run(t, nil)
	ingress := e.ingress(t, "web", "web.example.com")
	e.await(t, &appsv1.Deployment{}, shared)

	remove := e.gatewayAPI(t)
	e.class(t)
	gateway := e.gateway(t, "HTTP/80")
	route := e.httpRoute(t, "edge", "web")

	own := edge
	e.await(t, &appsv1.Deployment{}, own)
	token := e.token(t, own, infrastructure.Audience, e.pod(t, own, "proxy-1"))
	e.proxy(t, address, token).receives(t, leadsTo("web", "198.18.0.1"))
	e.programmed(t, gateway, "AddressNotAssigned")
	e.assign(t, own, "203.0.113.20")
	e.programmed(t, gateway, "Pending")
	if at := gateway.Status.Addresses; len(at) != 1 || at[0].Value != "203.0.113.20" {
		t.Errorf("Gateway addresses = %+v", at)
	}
	eventually(t, func(ctx context.Context) error {
		if err := e.client.Get(ctx, client.ObjectKeyFromObject(route), route); err != nil {
			return err
		}
		for _, parent := range route.Status.Parents {
			if meta.IsStatusConditionTrue(parent.Conditions, string(gatewayv1.RouteConditionAccepted)) {
				return nil
			}
		}
		return fmt.Errorf("the route is not accepted: %+v", route.Status.Parents)
	})
	noWritesAtRest(t, e)

	remove()
	eventually(t, func(ctx context.Context) error {
		if err := e.client.Get(ctx, own, &appsv1.Deployment{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the proxies of the Gateway were not deleted: %w", err)
		}
		return nil
	})
	e.assign(t, shared, "203.0.113.21")
	e.served(t, ingress, "203.0.113.21 80")
}

func (e *environment) httpRoute(t *testing.T, gateway, service string) *gatewayv1.HTTPRoute {
	t.Helper()
	port := gatewayv1.PortNumber(80)
	route := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: service}}
	route.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: gatewayv1.ObjectName(gateway)}}
	route.Spec.Rules = []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{
		BackendObjectReference: gatewayv1.BackendObjectReference{Name: gatewayv1.ObjectName(service), Port: &port},
	}}}}}
	e.create(t, route)
	return route
}

// tokensOfGateways checks that a proxy cannot receive the configuration of another Gateway, even with a pod
// that uses its service account.
func tokensOfGateways(t *testing.T, e *environment) {
	e.gatewayAPI(t)
	e.class(t)
	address, _ := e.run(t, nil)
	e.ingress(t, "web", "web.example.com")
	e.ingress(t, "own", "own.example.com")
	e.gateway(t, "HTTP/80")
	e.gatewayNamed(t, "inner", "HTTP/80")
	e.httpRoute(t, "edge", "web")
	e.httpRoute(t, "inner", "own")
	inner := types.NamespacedName{Namespace: namespace, Name: "inner-millrace"}
	e.await(t, &appsv1.Deployment{}, edge)
	e.await(t, &appsv1.Deployment{}, inner)

	pod := e.pod(t, edge, "edge-1")
	has := e.proxy(t, address, e.token(t, edge, infrastructure.Audience, pod)).receives(t, leadsTo("web", "198.18.0.1"))
	if err := leadsTo("own", "198.18.0.1")(has); err == nil {
		t.Error("the proxy of a Gateway received resources of another Gateway")
	}
	has = e.proxy(t, address, e.token(t, inner, infrastructure.Audience, e.pod(t, inner, "inner-1"))).receives(t, leadsTo("own", "198.18.0.1"))
	if err := leadsTo("web", "198.18.0.1")(has); err == nil {
		t.Error("the proxy of the other Gateway received resources of the first")
	}

	disguised := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "disguised", Labels: pod.Labels}}
	disguised.Spec = *pod.Spec.DeepCopy()
	disguised.Spec.ServiceAccountName = inner.Name
	e.create(t, disguised)
	e.proxy(t, address, e.token(t, inner, infrastructure.Audience, disguised)).isRefused(t, "does not belong to Gateway/shop/inner")
}

// programmed waits until a Gateway is not programmed for this reason.
func (e *environment) programmed(t *testing.T, gateway *gatewayv1.Gateway, reason string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := e.client.Get(ctx, client.ObjectKeyFromObject(gateway), gateway); err != nil {
			return err
		}
		got := meta.FindStatusCondition(gateway.Status.Conditions, string(gatewayv1.GatewayConditionProgrammed))
		if got == nil || got.Reason != reason {
			return fmt.Errorf("condition of the Gateway = %+v, want reason %s", got, reason)
		}
		return nil
	})
}

// conflictingStatuses overwrites statuses ten times per second. The controller must limit its writes and
// report it.
func conflictingStatuses(t *testing.T, e *environment) {
	e.gatewayAPI(t)
	e.class(t)
	e.run(t, nil)
	ingress := e.ingress(t, "web", "web.example.com")
	gateway := e.gateway(t, "HTTP/80")
	route := e.httpRoute(t, "edge", "web")
	e.await(t, &corev1.Service{}, edge)
	e.assign(t, edge, "203.0.113.20")
	e.await(t, &corev1.Service{}, shared)
	e.assign(t, shared, "203.0.113.10")
	e.served(t, ingress, "203.0.113.10 80")
	e.programmed(t, gateway, "Pending")

	overwrites := map[client.Object]string{
		ingress: `{"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.77"}]}}}`,
		gateway: `{"status":{"addresses":[{"type":"IPAddress","value":"198.51.100.77"}]}}`,
		route:   `{"status":{"parents":[]}}`,
	}
	before := e.statusWrites(t)
	const seconds = 4
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for range seconds * 10 {
		<-ticker.C
		for object, status := range overwrites {
			must(t, e.client.Status().Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(status))))
		}
	}
	after := e.statusWrites(t)
	for _, resource := range []string{"ingresses", "gateways", "httproutes"} {
		// Includes a conflict because of a stale cache, and the write after the pass that detects the
		// conflict.
		if writes := after[resource] - before[resource]; writes < 2 || writes > 8 {
			t.Errorf("%d status writes of %s within %d s", writes, resource, seconds)
		} else {
			t.Logf("%d status writes of %s within %d s", writes, resource, seconds)
		}
	}
	for object := range overwrites {
		e.warned(t, object, millracev1beta1.ReasonStatusConflict)
	}
	for _, kind := range []string{"Ingress", "Gateway", "HTTPRoute"} {
		e.contested(t, kind)
	}
	// The condition is in the write after the pause, or in the last one before.
	controlplane.Eventually(t, 40*time.Second, func(ctx context.Context) error {
		if err := e.client.Get(ctx, client.ObjectKeyFromObject(gateway), gateway); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(gateway.Status.Conditions, model.ConditionStatusConflicted) {
			return fmt.Errorf("conditions = %+v", gateway.Status.Conditions)
		}
		return nil
	})
}

func (e *environment) statusWrites(t *testing.T) map[string]int {
	t.Helper()
	all, err := e.server.Writes()
	must(t, err)
	writes := map[string]int{}
	for _, write := range all {
		if write.User == gatewayUser && write.Subresource == "status" {
			writes[write.Resource]++
		}
	}
	return writes
}

func (e *environment) warned(t *testing.T, object client.Object, reason string) {
	t.Helper()
	e.warnedOf(t, object, reason, "")
}

func (e *environment) warnedOf(t *testing.T, object client.Object, reason, text string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		list := &eventsv1.EventList{}
		if err := e.client.List(ctx, list, client.InNamespace(object.GetNamespace())); err != nil {
			return err
		}
		for i := range list.Items {
			if event := &list.Items[i]; event.Regarding.UID == object.GetUID() && event.Reason == reason && strings.Contains(event.Note, text) {
				return nil
			}
		}
		return fmt.Errorf("no %s %s of %T %s among %d events", reason, text, object, object.GetName(), len(list.Items))
	})
}

// twoInstallations runs a second gateway for the same Gateway. Neither may keep rolling the proxies.
func twoInstallations(t *testing.T, e *environment) {
	e.gatewayAPI(t)
	e.class(t)
	e.run(t, nil)
	e.gateway(t, "HTTP/80")
	deployment := &appsv1.Deployment{}
	e.await(t, deployment, edge)
	noWritesAtRest(t, e)
	before := e.writesOf(t, "deployments")
	e.client.MakeNamespaces(t, otherNamespace)
	t.Cleanup(func() {
		must(t, e.client.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: otherNamespace}}))
	})
	began := time.Now()
	e.run(t, func(c *controller.Config) {
		c.REST, c.Namespace, c.ProxyImage = e.server.Admin(), otherNamespace, "example.com/lbproxy:v2"
	})
	e.warnedOf(t, deployment, model.ReasonObjectConflict, "a second installation of Millrace")
	e.contested(t, "Deployment")
	// Wait for writes in progress, then check that there are none until the pauses end.
	previous := 0
	eventually(t, func(context.Context) error {
		last := previous
		time.Sleep(2 * time.Second)
		if previous = e.writesOf(t, "deployments"); previous != last {
			return fmt.Errorf("%d writes", previous)
		}
		return nil
	})
	if writes := previous - before; writes > 12 {
		t.Errorf("%d writes of a Deployment within %s", writes, time.Since(began))
	} else {
		t.Logf("%d writes of the Deployment within %s", writes, time.Since(began).Round(time.Second))
	}
}

func (e *environment) contested(t *testing.T, kind string) {
	t.Helper()
	eventually(t, func(context.Context) error {
		if got := gauge(t, "millrace_gateway_conflicting_objects", kind); got != 1 {
			return fmt.Errorf("the metric counts %v conflicting objects of kind %s, want 1", got, kind)
		}
		return nil
	})
}

func (e *environment) writesOf(t *testing.T, resource string) (count int) {
	t.Helper()
	all, err := e.server.Writes()
	must(t, err)
	for _, write := range all {
		if write.Resource == resource && write.Namespace == namespace && write.Subresource == "" {
			count++
		}
	}
	return count
}
