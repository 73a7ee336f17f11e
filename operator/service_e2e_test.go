// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// TestOperator runs the built program against a real API server, with the rights of config/rbac/operator.
func TestOperator(t *testing.T) {
	e := newEnvironment(t)
	for _, scenario := range []struct {
		name string
		run  func(*testing.T, *environment)
	}{
		{"dual stack", dualStack},
		{"two writes per Service", fewWrites},
		{"two Services for one address", race},
		{"an exhausted pool grows", exhaustion},
		{"restart", restart},
		{"deletion", deletion},
		{"deleted while the operator was down", deletedUnseen},
		{"ordered deletion", orderlyDeletion},
		{"restored from a backup", restored},
		{"deleted, retained by another finalizer", keptByAnother},
		{"a pool over pods", poolOverPods},
		{"released by the documented command", freedManually},
		{"ordered move", orderlyMove},
		{"type change", typeChange},
		{"deletion beside a cloud-controller-manager", cloudController},
		{"finalizers of other load balancers", foreignFinalizers},
		{"released addresses are reused last", freedLast},
		{"longest waiting Service first", firstComeFirstServed},
		{"quotas of namespaces", quotas},
		{"reserved by the CLI", reservedByCommand},
		{"family change", familyChange},
		{"requested address", requestedAddress},
		{"retained and claimed again", retain},
		{"reserved manually for a Service", handMade},
		{"manual claims with one port", portsTwice},
		{"unavailable pool and address", keptThoughWrong},
		{"Served condition", servedOrNot},
		{"Served per address", servedTogether},
		{"Announced per family", announcedByFamily},
		{"Served with zones", servedZones},
		{"duplicate addresses", servedDuplicates},
		{"VIPs answered on L2", servedOnLinks},
		{"status conflict", contestedStatus},
		{"long events", longEvent},
		{"namespace being deleted", terminatingNamespace},
		{"VIP deleted manually", deletedByHand},
		{"labels of the namespace", namespaceLabels},
		{"warnings", warnings},
		{"validation warnings", refusedObjects},
		{"warnings of a standby replica", warningsOfFollowers},
		{"self-signed certificate", selfSigned},
		{"certificates of the aggregated API", liveCertificates},
		{"defaults of Services", serviceDefaults},
		{"classes", classes},
		{"operators of two classes", twoClasses},
		{"addresses of another load balancer", foreignAddresses},
		{"Services that share an address", sharing},
		{"ports of a shared address that change", sharedPorts},
		{"sharing between namespaces", sharedByNamespaces},
		{"manual claims with that of a Service", sharedByHand},
		{"restart with shared addresses", sharedRestart},
		{"two operators and shared addresses", sharedSplitBrain},
		{"two active operators", splitBrain},
		{"change of the leader", failover},
		{"leader with full caches", warmFailover},
		{"unusable pools", badPools},
		{"pools rejected by the schema", refusedPools},
		{"communities rejected by the schema", refusedCommunities},
		{"columns of a pool", poolColumns},
		{"pools that overlap", overlappingPools},
		{"addresses of the cluster", occupiedPools},
		{"reserved addresses of a pool", avoidedAddresses},
		{"peers and advertisements", routing},
		{"nodes", nodes},
		{"zones of nodes", zones},
		{"drain reasons of nodes", departures},
		{"boots of nodes", boots},
		{"reports of nodes", reports},
		{"node ids wrap around", idsWrap},
		{"duplicate ids of nodes", duplicateIDs},
		{"events of BGP sessions", sessionEvents},
		{"keys of the tunnel", tunnelKeys},
		{"seed of the flow hash", flowSeed},
		{"node that does not follow a key rotation", tunnelKeysLate},
		{"rights on Secrets", tunnelKeyRights},
		{"metrics", operatorMetrics},
		{"no writes when idle", steadyState},
	} {
		if !t.Run(scenario.name, func(t *testing.T) {
			e.clean(t)
			scenario.run(t, e)
		}) && t.Context().Err() != nil {
			return
		}
	}
	e.clean(t)
}

func dualStack(t *testing.T, e *environment) {
	e.run(t)
	pool := e.pool(t, "main", nil, "203.0.113.0/30", "2001:db8:cafe::/64")
	service := e.service(t, "web", families(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv6Protocol, corev1.IPv4Protocol))
	e.addresses(t, service, "2001:db8:cafe::", "203.0.113.0")
	e.condition(t, service, metav1.ConditionTrue, millracev1beta1.ReasonAddressAssigned, "has 2001:db8:cafe::, 203.0.113.0")
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if ingress.IPMode == nil || *ingress.IPMode != corev1.LoadBalancerIPModeVIP {
			t.Errorf("ipMode of %s = %v", ingress.IP, ingress.IPMode)
		}
	}
	if !sets.New(service.Finalizers...).HasAll(millracev1beta1.Finalizer, millracev1beta1.SharedFinalizer) {
		t.Errorf("finalizers = %v", service.Finalizers)
	}
	for _, address := range []string{"203.0.113.0", "2001:db8:cafe::"} {
		if vip := e.bound(t, address, service); vip.Spec.Pool != "main" || vip.Spec.ReclaimPolicy != millracev1beta1.ReclaimDelete {
			t.Errorf("VIP %s = %+v", address, vip.Spec)
		}
	}
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, pool); err != nil {
			return err
		}
		return counted(pool, 2, 1<<53-3)
	})
	e.ready(t, pool, &pool.Status.Conditions, millracev1beta1.ReasonValid, "")
}

func race(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "one", nil, "203.0.113.7/32")
	first, second := e.service(t, "first"), e.service(t, "second")
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, first); err != nil {
			return err
		}
		if err := e.get(ctx, second); err != nil {
			return err
		}
		if len(ingress(first))+len(ingress(second)) != 1 {
			return fmt.Errorf("addresses of the first Service = %v, of the second = %v", ingress(first), ingress(second))
		}
		return nil
	})
	if len(ingress(first)) == 0 {
		first, second = second, first
	}
	e.condition(t, second, metav1.ConditionFalse, millracev1beta1.ReasonPoolExhausted, `no free IPv4 address in pool "one"`)
	must(t, e.client.Delete(t.Context(), first))
	e.addresses(t, second, "203.0.113.7")
	e.condition(t, second, metav1.ConditionTrue, millracev1beta1.ReasonAddressAssigned, "has 203.0.113.7")
	eventually(t, func(ctx context.Context) error {
		return e.event(ctx, second, millracev1beta1.ReasonAddressAssigned, "has 203.0.113.7")
	})
	e.bound(t, "203.0.113.7", second)
}

func exhaustion(t *testing.T, e *environment) {
	e.run(t)
	service := e.service(t, "web", families(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv4Protocol, corev1.IPv6Protocol))
	e.condition(t, service, metav1.ConditionFalse, millracev1beta1.ReasonNoMatchingPool, "no pool with IPv4 addresses selects this Service")
	pool := e.pool(t, "main", nil, "203.0.113.7/32")
	e.condition(t, service, metav1.ConditionFalse, millracev1beta1.ReasonNoMatchingPool, "no pool with IPv6 addresses selects this Service")
	vips := &millracev1beta1.VIPList{}
	must(t, e.client.List(t.Context(), vips))
	if len(vips.Items) > 0 || len(ingress(service)) > 0 {
		t.Errorf("a partial assignment was made although both families are required: %v", vips.Items)
	}
	other := e.service(t, "other", families(corev1.IPFamilyPolicyPreferDualStack))
	e.addresses(t, other, "203.0.113.7")
	e.condition(t, other, metav1.ConditionTrue, millracev1beta1.ReasonAddressAssigned, "has 203.0.113.7")
	update(t, e, pool, func(pool *millracev1beta1.VIPPool) {
		pool.Spec.Addresses = []string{"203.0.113.7-203.0.113.8", "2001:db8:cafe::1-2001:db8:cafe::2"}
	})
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, service); err != nil {
			return err
		}
		if err := e.get(ctx, other); err != nil {
			return err
		}
		if len(ingress(service)) != 2 || len(ingress(other)) != 2 || ingress(other)[0] != "203.0.113.7" {
			return fmt.Errorf("addresses of the Services = %v and %v", ingress(service), ingress(other))
		}
		return nil
	})
}

func (e *environment) assignments(t *testing.T) map[string]string {
	t.Helper()
	list := &millracev1beta1.VIPList{}
	must(t, e.client.List(t.Context(), list))
	found := map[string]string{}
	for _, vip := range list.Items {
		for _, claim := range vip.Spec.Claims {
			found[claim.Name] += fmt.Sprintf("%s %s ", vip.Spec.Address, vip.UID)
		}
	}
	return found
}

func (e *environment) allAssigned(t *testing.T, count int) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		list := &corev1.ServiceList{}
		if err := e.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return err
		}
		for i := range list.Items {
			if got := ingress(&list.Items[i]); len(got) != count {
				return fmt.Errorf("addresses of Service %s = %v", list.Items[i].Name, got)
			}
		}
		return nil
	})
}

func (e *environment) sameAssignments(t *testing.T, before map[string]string) {
	t.Helper()
	after := e.assignments(t)
	for name, was := range before {
		if after[name] != was {
			t.Errorf("address of Service %s changed from %s to %s", name, was, after[name])
		}
	}
}

func restart(t *testing.T, e *environment) {
	first := e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24")
	for i := range 10 {
		e.service(t, fmt.Sprintf("s%d", i))
	}
	e.allAssigned(t, 1)
	before := e.assignments(t)
	first.kill(t)

	// Addresses are kept without the pool, and although a new Service may be reconciled first.
	must(t, e.client.DeleteAllOf(t.Context(), &millracev1beta1.VIPPool{}))
	better := func(spec *millracev1beta1.VIPPoolSpec) { spec.Priority = 100 }
	pool := e.pool(t, "better", better, "203.0.113.0/29", "198.51.100.0/24")
	late := e.service(t, "a-late-one")
	e.run(t)
	e.addresses(t, late, "198.51.100.0")
	e.sameAssignments(t, before)
	vip := vipOf("203.0.113.3")
	e.ready(t, vip, &vip.Status.Conditions, millracev1beta1.ReasonValid, `VIPPool "main" no longer exists`)
	e.ready(t, pool, &pool.Status.Conditions, millracev1beta1.ReasonValid, "")

	update(t, e, pool, func(pool *millracev1beta1.VIPPool) { pool.Spec.Addresses = []string{"203.0.113.0/29"} })
	e.ready(t, pool, &pool.Status.Conditions, millracev1beta1.ReasonValid, "no longer belong to the pool and are kept until they are released: 198.51.100.0")
	e.addresses(t, late, "198.51.100.0")
	e.sameAssignments(t, before)
}

func deletion(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24", "2001:db8:cafe::/64")
	service := e.service(t, "web", families(corev1.IPFamilyPolicyRequireDualStack))
	e.addresses(t, service, "203.0.113.0", "2001:db8:cafe::")
	must(t, e.client.Delete(t.Context(), service))
	e.gone(t, service)
	e.gone(t, vipOf("203.0.113.0"))
	e.gone(t, vipOf("2001:db8:cafe::"))
}

func deletedUnseen(t *testing.T, e *environment) {
	running := e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24")
	gone, again := e.service(t, "gone"), e.service(t, "again")
	e.allAssigned(t, 1)
	running.stop(t)
	for _, service := range []*corev1.Service{gone, again} {
		update(t, e, service, func(service *corev1.Service) { service.Finalizers = nil })
		must(t, e.client.Delete(t.Context(), service))
	}
	again = e.service(t, "again")
	reserved := vipOf("203.0.113.99")
	reserved.Spec.Claims = []millracev1beta1.VIPClaim{{Namespace: namespace, Name: "to-come"}}
	must(t, e.client.Create(t.Context(), reserved))

	e.run(t)
	e.allAssigned(t, 1)
	eventually(t, func(ctx context.Context) error {
		list := &millracev1beta1.VIPList{}
		if err := e.client.List(ctx, list); err != nil {
			return err
		}
		if len(list.Items) != 2 {
			return fmt.Errorf("%d VIPs, want that of the new Service and the reserved one", len(list.Items))
		}
		return nil
	})
	must(t, e.get(t.Context(), again))
	e.bound(t, ingress(again)[0], again)
}

func familyChange(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24", "2001:db8:cafe::/64")
	service := e.service(t, "web")
	e.addresses(t, service, "203.0.113.0")
	update(t, e, service, families(corev1.IPFamilyPolicyRequireDualStack))
	e.addresses(t, service, "203.0.113.0", "2001:db8:cafe::")
	update(t, e, service, func(service *corev1.Service) {
		service.Spec.IPFamilies, service.Spec.ClusterIPs = service.Spec.IPFamilies[:1], service.Spec.ClusterIPs[:1]
		families(corev1.IPFamilyPolicySingleStack, service.Spec.IPFamilies...)(service)
	})
	e.addresses(t, service, "203.0.113.0")
	e.gone(t, vipOf("2001:db8:cafe::"))
}
