// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func (e *environment) reservedFor(t *testing.T, address, name string) *millracev1beta1.VIP {
	t.Helper()
	vip := vipOf(address)
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, vip); err != nil {
			return err
		}
		claims := vip.Spec.Claims
		if len(claims) != 1 || claims[0].Name != name || claims[0].UID != "" || vip.Status.Phase != millracev1beta1.VIPReserved {
			return fmt.Errorf("VIP %s: phase %s, claims %+v, want it reserved for %s", address, vip.Status.Phase, claims, name)
		}
		return nil
	})
	return vip
}

func retain(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "main", func(spec *millracev1beta1.VIPPoolSpec) { spec.ReclaimPolicy = millracev1beta1.ReclaimRetain }, "203.0.113.0/31")
	service := e.service(t, "web")
	e.addresses(t, service, "203.0.113.0")
	uid := e.bound(t, "203.0.113.0", service).UID
	for range 2 {
		must(t, e.client.Delete(t.Context(), service))
		e.gone(t, service)
		e.reservedFor(t, "203.0.113.0", "web")

		// Other Services do not get it, not even by request.
		anyone := e.service(t, "anyone")
		e.addresses(t, anyone, "203.0.113.1")
		thief := e.service(t, "thief", annotated(millracev1beta1.AnnotationAddresses, "203.0.113.0"))
		e.condition(t, thief, metav1.ConditionFalse, millracev1beta1.ReasonAddressInUse,
			`address 203.0.113.0 of pool "main" is reserved for Service shop/web`)
		must(t, e.client.Delete(t.Context(), thief))
		must(t, e.client.Delete(t.Context(), anyone))
		e.gone(t, anyone)
		e.gone(t, thief)

		service = e.service(t, "web")
		e.addresses(t, service, "203.0.113.0")
		if vip := e.bound(t, "203.0.113.0", service); vip.UID != uid {
			t.Error("a new VIP was bound instead of the reserved one")
		}
	}

	update(t, e, service, toClusterIP)
	e.reservedFor(t, "203.0.113.0", "web")
	update(t, e, service, toLoadBalancer)
	e.addresses(t, service, "203.0.113.0")

	must(t, e.client.Delete(t.Context(), service))
	e.gone(t, service)
	vip := e.reservedFor(t, "203.0.113.0", "web")
	update(t, e, vip, func(vip *millracev1beta1.VIP) { vip.Spec.Claims = nil })
	other := e.service(t, "other", annotated(millracev1beta1.AnnotationAddresses, "203.0.113.0"))
	e.addresses(t, other, "203.0.113.0")
}

func toClusterIP(service *corev1.Service) {
	service.Spec.Type, service.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
}

func toLoadBalancer(service *corev1.Service) {
	service.Spec.Type = corev1.ServiceTypeLoadBalancer
	class(millracev1beta1.Class)(service)
}

func (e *environment) bare(t *testing.T, service *corev1.Service) {
	t.Helper()
	e.addresses(t, service)
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, service); err != nil {
			return err
		}
		if len(service.Finalizers)+len(service.Status.Conditions) > 0 {
			return fmt.Errorf("remaining: %v and %v", service.Finalizers, service.Status.Conditions)
		}
		return nil
	})
}

func typeChange(t *testing.T, e *environment) {
	running := e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24")
	service := e.service(t, "web")
	e.addresses(t, service, "203.0.113.0")
	update(t, e, service, toClusterIP)
	e.gone(t, vipOf("203.0.113.0"))
	e.bare(t, service)
	update(t, e, service, toLoadBalancer)
	e.addresses(t, service, "203.0.113.1")

	// The type and class change while no operator runs.
	running.stop(t)
	update(t, e, service, toClusterIP)
	update(t, e, service, func(service *corev1.Service) {
		service.Spec.Type = corev1.ServiceTypeLoadBalancer
		class("example.com/lb")(service)
	})
	e.run(t)
	e.gone(t, vipOf("203.0.113.1"))
	e.bare(t, service)
}

// cloudController removes the shared finalizer and empties the status of a deleted Service, as the service
// controller of k8s.io/cloud-provider does.
func cloudController(t *testing.T, e *environment) {
	e.run(t, "--release-delay=1s")
	e.pool(t, "main", nil, "203.0.113.0/32")
	service := e.service(t, "web")
	e.addresses(t, service, "203.0.113.0")
	e.bound(t, "203.0.113.0", service)
	must(t, e.client.Delete(t.Context(), service))
	for _, change := range []func(*corev1.Service){
		func(service *corev1.Service) {
			service.Finalizers = slices.DeleteFunc(service.Finalizers, func(f string) bool { return f == millracev1beta1.SharedFinalizer })
		},
		func(service *corev1.Service) { service.Status.LoadBalancer = corev1.LoadBalancerStatus{} },
	} {
		must(t, e.get(t.Context(), service))
		base := service.DeepCopy()
		change(service)
		must(t, e.client.Status().Patch(t.Context(), service, client.StrategicMergeFrom(base)))
	}
	e.finalizers(t, service, millracev1beta1.Finalizer)
	e.releasing(t, "203.0.113.0", millracev1beta1.ReleaseDraining)
	e.releasing(t, "203.0.113.0", millracev1beta1.ReleaseWithdrawn)
	e.gone(t, service)
}

func (e *environment) finalizers(t *testing.T, service *corev1.Service, want ...string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, service); err != nil {
			return err
		}
		if !slices.Equal(service.Finalizers, want) {
			return fmt.Errorf("finalizers of %s = %v, want %v", service.Name, service.Finalizers, want)
		}
		return nil
	})
}

// A shared finalizer of another load balancer stays.
func foreignFinalizers(t *testing.T, e *environment) {
	e.pool(t, "main", nil, "203.0.113.0/24")
	with := func(service *corev1.Service) { service.Finalizers = []string{millracev1beta1.SharedFinalizer} }
	other := e.service(t, "other", with, class("example.com/lb"))
	cloud := e.service(t, "cloud", with, func(service *corev1.Service) { service.Spec.LoadBalancerClass = nil })
	previous := e.service(t, "former", with, toClusterIP)
	for _, service := range []*corev1.Service{other, cloud} {
		must(t, e.client.Delete(t.Context(), service))
	}
	e.run(t)
	// The initial list has no order: a second round follows it.
	for _, name := range []string{"first", "second"} {
		e.addresses(t, e.service(t, name), map[string]string{"first": "203.0.113.0", "second": "203.0.113.1"}[name])
	}
	for _, service := range []*corev1.Service{other, cloud, previous} {
		e.finalizers(t, service, millracev1beta1.SharedFinalizer)
	}
}

func freedLast(t *testing.T, e *environment) {
	running := e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/30")
	give := func(name, address string) *corev1.Service {
		t.Helper()
		service := e.service(t, name)
		e.addresses(t, service, address)
		return service
	}
	free := func(service *corev1.Service) {
		t.Helper()
		must(t, e.client.Delete(t.Context(), service))
		e.gone(t, service)
	}
	first := give("first", "203.0.113.0")
	second := give("second", "203.0.113.1")
	free(second)
	free(first)
	third := give("third", "203.0.113.2")

	// A restart forgets freed addresses, but the position of the search remains.
	running.stop(t)
	running = e.run(t)
	give("fourth", "203.0.113.3")
	free(third)
	give("fifth", "203.0.113.0")
	give("sixth", "203.0.113.1")
	give("seventh", "203.0.113.2")
	running.stop(t)
}

func (e *environment) releasing(t *testing.T, address string, phase millracev1beta1.ReleasePhase) {
	t.Helper()
	vip := vipOf(address)
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, vip); err != nil {
			return err
		}
		claims := vip.Spec.Claims
		if len(claims) != 1 || claims[0].Release == nil || claims[0].Release.Phase != phase {
			return fmt.Errorf("claims of VIP %s = %+v, want phase %s", address, claims, phase)
		}
		return nil
	})
}

func orderlyDeletion(t *testing.T, e *environment) {
	first := e.run(t, "--release-delay=1s")
	e.pool(t, "main", nil, "203.0.113.0/32")
	service := e.service(t, "web")
	e.addresses(t, service, "203.0.113.0")
	e.bound(t, "203.0.113.0", service)
	must(t, e.client.Delete(t.Context(), service))
	e.releasing(t, "203.0.113.0", millracev1beta1.ReleaseDraining)
	heir := e.service(t, "heir")
	e.condition(t, heir, metav1.ConditionFalse, millracev1beta1.ReasonPoolExhausted, "")
	must(t, e.get(t.Context(), service))

	// Another operator completes the release, and the waiting Service gets the address.
	first.kill(t)
	e.run(t, "--release-delay=1s")
	e.releasing(t, "203.0.113.0", millracev1beta1.ReleaseWithdrawn)
	e.gone(t, service)
	e.addresses(t, heir, "203.0.113.0")
	e.bound(t, "203.0.113.0", heir)
}

func orderlyMove(t *testing.T, e *environment) {
	e.run(t, "--release-delay=1s")
	e.pool(t, "main", nil, "203.0.113.0/31")
	service := e.service(t, "web")
	e.addresses(t, service, "203.0.113.0")
	update(t, e, service, annotated(millracev1beta1.AnnotationAddresses, "203.0.113.1"))
	e.addresses(t, service, "203.0.113.1")
	e.releasing(t, "203.0.113.0", millracev1beta1.ReleaseDraining)
	e.releasing(t, "203.0.113.0", millracev1beta1.ReleaseWithdrawn)
	e.gone(t, vipOf("203.0.113.0"))
	e.bound(t, "203.0.113.1", service)
	eventually(t, func(ctx context.Context) error {
		return e.event(ctx, service, millracev1beta1.ReasonAddressReleased, "released 203.0.113.0")
	})
}
