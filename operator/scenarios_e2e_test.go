// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

func requestedAddress(t *testing.T, e *environment) {
	e.run(t)
	onRequest := func(spec *millracev1beta1.VIPPoolSpec) {
		no := false
		spec.AutoAssign, spec.Reserved = &no, []string{"203.0.113.1"}
	}
	e.pool(t, "main", onRequest, "203.0.113.0/24")
	owner := e.service(t, "owner", annotated(millracev1beta1.AnnotationAddresses, "203.0.113.20"))
	e.addresses(t, owner, "203.0.113.20")
	other := e.service(t, "other", func(service *corev1.Service) { service.Spec.LoadBalancerIP = "203.0.113.20" })
	e.condition(t, other, metav1.ConditionFalse, millracev1beta1.ReasonAddressInUse,
		`address 203.0.113.20 of pool "main" is in use by Service shop/owner`)
	reserved := e.service(t, "reserved", annotated(millracev1beta1.AnnotationAddresses, "203.0.113.1"))
	e.condition(t, reserved, metav1.ConditionFalse, millracev1beta1.ReasonAddressNotInPool, "203.0.113.1 is not in ")
	wrong := e.service(t, "wrong", annotated(millracev1beta1.AnnotationAddresses, "203.0.113.300"))
	e.condition(t, wrong, metav1.ConditionFalse, millracev1beta1.ReasonInvalid, `metadata.annotations[millrace.io/addresses]: "203.0.113.300"`)

	update(t, e, owner, annotated(millracev1beta1.AnnotationAddresses, "203.0.113.21"))
	e.addresses(t, owner, "203.0.113.21")
	e.addresses(t, other, "203.0.113.20")
	e.bound(t, "203.0.113.20", other)

	several := e.service(t, "several", func(service *corev1.Service) { service.Spec.LoadBalancerIP = "203.0.113.21, 203.0.113.30,203.0.113.31" })
	e.condition(t, several, metav1.ConditionFalse, millracev1beta1.ReasonAddressInUse, "203.0.113.21")
	e.addresses(t, several)
	update(t, e, several, func(service *corev1.Service) { service.Spec.LoadBalancerIP = "203.0.113.31,203.0.113.30" })
	e.addresses(t, several, "203.0.113.31", "203.0.113.30")
	e.bound(t, "203.0.113.30", several)
	update(t, e, several, func(service *corev1.Service) { service.Spec.LoadBalancerIP = "203.0.113.30,203.0.113.30" })
	e.condition(t, several, metav1.ConditionFalse, millracev1beta1.ReasonInvalid, "spec.loadBalancerIP: 203.0.113.30 is a duplicate")
	update(t, e, several, func(service *corev1.Service) { service.Spec.LoadBalancerIP = "203.0.113.30" })
	e.addresses(t, several, "203.0.113.30")
	e.gone(t, vipOf("203.0.113.31"))

	// An invalid annotation releases no address.
	update(t, e, owner, annotated(millracev1beta1.AnnotationAddresses, "nonsense"))
	e.condition(t, owner, metav1.ConditionFalse, millracev1beta1.ReasonInvalid, "has 203.0.113.21; ")
	e.addresses(t, owner, "203.0.113.21")
}

func handMade(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24")
	vip := vipOf("198.51.100.77")
	vip.Spec.Claims = []millracev1beta1.VIPClaim{{Namespace: namespace, Name: "web"}}
	must(t, e.client.Create(t.Context(), vip))
	misnamed := vipOf("198.51.100.78")
	misnamed.Name = "my-vip"
	misnamed.Spec.Claims = vip.Spec.Claims
	if err := e.client.Create(t.Context(), misnamed); !apierrors.IsInvalid(err) {
		t.Errorf("VIP whose name differs from its address: %v, want Invalid", err)
	}
	service := e.service(t, "web")
	e.addresses(t, service, "198.51.100.77")
	e.bound(t, "198.51.100.77", service)
}

func deletedByHand(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24")
	first, second := e.service(t, "first"), e.service(t, "second")
	e.allAssigned(t, 1)
	must(t, e.get(t.Context(), first))
	must(t, e.get(t.Context(), second))
	before := ingress(second)[0]
	vip := e.bound(t, before, second)
	must(t, e.client.Delete(t.Context(), vip))
	eventually(t, func(ctx context.Context) error {
		again := vipOf(before)
		if err := e.get(ctx, again); err != nil {
			return err
		}
		if again.UID == vip.UID {
			return fmt.Errorf("VIP %s was not recreated", before)
		}
		return nil
	})
	e.bound(t, before, second)
	e.addresses(t, second, before)
}

func namespaceLabels(t *testing.T, e *environment) {
	e.run(t)
	selected := func(spec *millracev1beta1.VIPPoolSpec) {
		spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tenant": "red"}}
	}
	e.pool(t, "red", selected, "203.0.113.0/24")
	service := e.service(t, "web", annotated(millracev1beta1.AnnotationPool, "red"))
	e.condition(t, service, metav1.ConditionFalse, millracev1beta1.ReasonNoMatchingPool, `requested pool "red" does not select this Service`)
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	update(t, e, object, func(object *corev1.Namespace) { object.Labels["tenant"] = "red" })
	e.addresses(t, service, "203.0.113.0")
	update(t, e, object, func(object *corev1.Namespace) { delete(object.Labels, "tenant") })
	other := e.service(t, "other")
	e.condition(t, other, metav1.ConditionFalse, millracev1beta1.ReasonNoMatchingPool, "no pool with IPv4 addresses selects this Service")
	e.addresses(t, service, "203.0.113.0")
}

func classes(t *testing.T, e *environment) {
	e.pool(t, "main", nil, "203.0.113.0/24")
	without := e.service(t, "without", func(service *corev1.Service) { service.Spec.LoadBalancerClass = nil })
	foreign := e.service(t, "foreign", class("example.com/lb"))
	foreign.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
	must(t, e.client.Status().Update(t.Context(), foreign))
	ours := e.service(t, "ours")
	running := e.run(t)
	e.addresses(t, ours, "203.0.113.0")
	e.addresses(t, without)
	running.stop(t)
	running = e.run(t, "--default-class")
	e.addresses(t, without, "203.0.113.1")
	running.stop(t)
	e.run(t)
	e.gone(t, vipOf("203.0.113.1"))
	e.addresses(t, without)
	e.addresses(t, ours, "203.0.113.0")
	e.addresses(t, foreign, "198.51.100.1")
	if len(foreign.Finalizers)+len(foreign.Status.Conditions) > 0 {
		t.Errorf("a Service of another class was modified: %+v", foreign)
	}
}

func twoClasses(t *testing.T, e *environment) {
	const internal = "example.com/internal-vip"
	e.pool(t, "main", nil, "203.0.113.0/30")
	public, within := e.service(t, "public"), e.service(t, "within", class(internal))
	first := e.run(t)
	e.addresses(t, public, "203.0.113.0")
	e.addresses(t, within)
	second := e.run(t, "--load-balancer-class="+internal)
	e.addresses(t, within, "203.0.113.1")
	e.condition(t, within, metav1.ConditionTrue, millracev1beta1.ReasonAddressAssigned, "has 203.0.113.1")

	// After a restart each operator finds the other's addresses.
	first.stop(t)
	second.stop(t)
	first, marker := e.run(t), e.service(t, "marker")
	e.addresses(t, marker, "203.0.113.2")
	first.stop(t)
	e.run(t, "--load-balancer-class="+internal)
	last := e.service(t, "last", class(internal))
	e.addresses(t, last, "203.0.113.3")
	for service, address := range map[*corev1.Service]string{public: "203.0.113.0", within: "203.0.113.1", marker: "203.0.113.2"} {
		e.addresses(t, service, address)
		e.bound(t, address, service)
	}

	must(t, e.client.Delete(t.Context(), public))
	e.gone(t, public)
	e.gone(t, vipOf("203.0.113.0"))
}

// foreignAddresses covers Services without a class that another load balancer serves first and Millrace later.
func foreignAddresses(t *testing.T, e *environment) {
	serve := func(name, address string) *corev1.Service {
		t.Helper()
		service := e.service(t, name, func(service *corev1.Service) { service.Spec.LoadBalancerClass = nil })
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
		must(t, e.client.Status().Update(t.Context(), service))
		return service
	}
	outside, first := serve("outside", "198.51.100.77"), serve("first", "203.0.113.7")
	running := e.run(t, "--default-class")
	for _, service := range []*corev1.Service{outside, first} {
		e.condition(t, service, metav1.ConditionFalse, millracev1beta1.ReasonForeignAddress, "another load balancer assigned it, and it is kept")
	}
	e.addresses(t, outside, "198.51.100.77")
	e.addresses(t, first, "203.0.113.7")

	// Addresses of a pool are claimed; Services that shared them keep them.
	e.pool(t, "main", nil, "203.0.113.0/24")
	e.condition(t, first, metav1.ConditionTrue, millracev1beta1.ReasonAddressAssigned, "has 203.0.113.7")
	running.stop(t)
	sharer := serve("sharer", "203.0.113.7")
	running = e.run(t, "--default-class")
	e.condition(t, sharer, metav1.ConditionFalse, millracev1beta1.ReasonForeignAddress, "203.0.113.7")
	e.addresses(t, first, "203.0.113.7")
	e.addresses(t, sharer, "203.0.113.7")
	e.addresses(t, outside, "198.51.100.77")

	running.stop(t)
	e.run(t)
	e.gone(t, vipOf("203.0.113.7"))
	e.bare(t, first)
	e.addresses(t, outside, "198.51.100.77")
	e.addresses(t, sharer, "203.0.113.7")
}

func splitBrain(t *testing.T, e *environment) {
	e.pool(t, "main", nil, "203.0.113.0-203.0.113.29", "2001:db8:cafe::/64")
	for i := range 15 {
		e.service(t, fmt.Sprintf("early%d", i), families(corev1.IPFamilyPolicyRequireDualStack))
	}
	e.run(t)
	e.run(t)
	for i := range 15 {
		e.service(t, fmt.Sprintf("late%d", i), families(corev1.IPFamilyPolicyRequireDualStack))
	}
	e.allAssigned(t, 2)
	eventually(t, func(ctx context.Context) error {
		vips := &millracev1beta1.VIPList{}
		if err := e.client.List(ctx, vips); err != nil {
			return err
		}
		claims := map[string]int{}
		for _, vip := range vips.Items {
			if len(vip.Spec.Claims) != 1 {
				t.Fatalf("claims of VIP %s = %+v", vip.Name, vip.Spec.Claims)
			}
			claims[vip.Spec.Claims[0].Name]++
		}
		if len(vips.Items) != 60 || len(claims) != 30 {
			return fmt.Errorf("%d VIPs for %d Services, want 60 for 30: %v", len(vips.Items), len(claims), claims)
		}
		return nil
	})
	services := &corev1.ServiceList{}
	must(t, e.client.List(t.Context(), services, client.InNamespace(namespace)))
	for i := range services.Items {
		for _, address := range ingress(&services.Items[i]) {
			e.bound(t, address, &services.Items[i])
		}
	}
}

func failover(t *testing.T, e *environment) {
	first := e.run(t, "--leader-elect")
	e.pool(t, "main", nil, "203.0.113.0/24")
	service := e.service(t, "web")
	e.addresses(t, service, "203.0.113.0")
	e.run(t, "--leader-elect")
	before := e.assignments(t)
	first.stop(t)
	start := time.Now()
	late := e.service(t, "late")
	e.addresses(t, late, "203.0.113.1")
	// The previous leader released the Lease, which would last 15 seconds otherwise.
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("the next leader started after %s", took)
	}
	e.sameAssignments(t, before)
}

// awaitIdle waits until the operator has been idle for a while and returns all its writes.
func (e *environment) awaitIdle(t *testing.T, idle time.Duration) []controlplane.Write {
	t.Helper()
	var last []controlplane.Write
	since := time.Now()
	eventually(t, func(context.Context) error {
		writes, err := e.server.Writes()
		if err != nil {
			return err
		}
		writes = slices.DeleteFunc(writes, func(write controlplane.Write) bool {
			// The Lease and the event about its holder do not count.
			return write.User != operatorUser || write.Namespace == systemNamespace
		})
		if len(writes) != len(last) {
			last, since = writes, time.Now()
		}
		if time.Since(since) < idle {
			return fmt.Errorf("the operator still writes, latest: %+v", last[len(last)-1])
		}
		return nil
	})
	return last
}

func steadyState(t *testing.T, e *environment) {
	const count = 100
	before := len(e.awaitIdle(t, time.Second))
	for i := range 3 {
		e.node(t, fmt.Sprintf("node%d", i), fmt.Sprintf("198.51.100.%d", i+1))
	}
	e.run(t, "--leader-elect")
	pool := e.pool(t, "main", nil, "203.0.113.0/24", "2001:db8:cafe::/64")
	e.ready(t, pool, &pool.Status.Conditions, millracev1beta1.ReasonValid, "")
	advertisement := e.advertisement(t, "all", nil)
	e.ready(t, advertisement, &advertisement.Status.Conditions, millracev1beta1.ReasonValid, "")
	start := time.Now()
	for i := range count {
		e.service(t, fmt.Sprintf("s%d", i), families(corev1.IPFamilyPolicyRequireDualStack))
	}
	e.allAssigned(t, 2)
	// Counters of a pool are written at most every half second.
	poolWrites := int(time.Since(start)/(500*time.Millisecond)) + 3
	writes := e.awaitIdle(t, 10*time.Second)[before:]
	perKind := map[string]int{}
	for _, write := range writes {
		if write.Code >= 400 {
			t.Errorf("write failed: %+v", write)
		}
		perKind[write.Verb+" "+write.Resource+"/"+write.Subresource]++
	}
	t.Logf("writes: %v", perKind)
	want := map[string]int{
		"patch services/status": count,
		"create vips/":          2 * count,
		// There are no agents: each VIP, and one event per Service, reports that no node announces it.
		"patch vips/status":     2 * count,
		"create events/":        count,
		"create lbnodes/":       3,
		"create lbnodereports/": 3,
		"create configmaps/":    1,
		"update configmaps/":    2,

		"patch vipadvertisements/status": 1,
	}
	for _, kind := range slices.Sorted(maps.Keys(perKind)) {
		switch {
		case kind == "patch vippools/status":
			if perKind[kind] > poolWrites {
				t.Errorf("%d status writes of one pool, want at most %d", perKind[kind], poolWrites)
			}
		case perKind[kind] != want[kind]:
			t.Errorf("%d × %s, want %d", perKind[kind], kind, want[kind])
		}
	}

	e.run(t)
	if after := e.awaitIdle(t, 5*time.Second)[before:]; len(after) != len(writes) {
		t.Errorf("writes after a restart: %+v", after[len(writes):])
	}
}
