// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func avoidedAddresses(t *testing.T, e *environment) {
	e.run(t)
	pool := e.pool(t, "main", nil, "203.0.113.0/30", "2001:db8:cafe::/126")
	both := families(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv4Protocol, corev1.IPv6Protocol)
	before := e.service(t, "before", both)
	e.addresses(t, before, "203.0.113.0", "2001:db8:cafe::")
	update(t, e, pool, func(pool *millracev1beta1.VIPPool) {
		pool.Spec.Avoid = []millracev1beta1.AvoidedAddress{
			millracev1beta1.AvoidNetwork, millracev1beta1.AvoidBroadcast, millracev1beta1.AvoidSubnetRouterAnycast,
		}
	})
	e.usable(t, pool, "203.0.113.1-203.0.113.2", "2001:db8:cafe::1-2001:db8:cafe::3")
	e.ready(t, pool, &pool.Status.Conditions, millracev1beta1.ReasonValid,
		"2 assigned addresses no longer belong to the pool and are kept until they are released: 203.0.113.0, 2001:db8:cafe::")
	for name, address := range map[string]string{"network": "203.0.113.0", "broadcast": "203.0.113.3", "anycast": "2001:db8:cafe::"} {
		family := corev1.IPv4Protocol
		if name == "anycast" {
			family = corev1.IPv6Protocol
		}
		service := e.service(t, name, families(corev1.IPFamilyPolicySingleStack, family), annotated(millracev1beta1.AnnotationAddresses, address))
		e.condition(t, service, metav1.ConditionFalse, millracev1beta1.ReasonAddressNotInPool, address+" is not in ")
	}
	e.addresses(t, e.service(t, "web", both), "203.0.113.1", "2001:db8:cafe::1")
	e.addresses(t, e.service(t, "api", both), "203.0.113.2", "2001:db8:cafe::2")
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, pool); err != nil {
			return err
		}
		return counted(pool, 6, 1)
	})
	last := e.service(t, "last")
	e.condition(t, last, metav1.ConditionFalse, millracev1beta1.ReasonPoolExhausted, `no free IPv4 address in pool "main"`)
	e.addresses(t, before, "203.0.113.0", "2001:db8:cafe::")
}

// firstComeFirstServed passes a pool's only address on, across a restart and with new Services.
func firstComeFirstServed(t *testing.T, e *environment) {
	running := e.run(t)
	e.pool(t, "main", nil, "203.0.113.7/32")
	var line []*corev1.Service
	wait := func(name string) {
		t.Helper()
		service := e.service(t, name)
		e.condition(t, service, metav1.ConditionFalse, millracev1beta1.ReasonPoolExhausted, `no free IPv4 address in pool "main"`)
		line = append(line, service)
	}
	holder := e.service(t, "holder")
	e.addresses(t, holder, "203.0.113.7")
	for i := range 6 {
		wait(fmt.Sprintf("web%d", 9-i))
	}
	next := func() {
		t.Helper()
		e.addresses(t, line[0], "203.0.113.7")
		for _, other := range line[1:] {
			e.addresses(t, other)
		}
		holder, line = line[0], line[1:]
	}
	for i := range 3 {
		must(t, e.client.Delete(t.Context(), holder))
		late := e.service(t, fmt.Sprintf("late%d", i))
		next()
		line = append(line, late)
		e.condition(t, late, metav1.ConditionFalse, millracev1beta1.ReasonPoolExhausted, "")
	}
	// Condition times have whole seconds. Within one second, age and then name decide.
	running.stop(t)
	must(t, e.client.Delete(t.Context(), holder))
	e.run(t)
	slices.SortStableFunc(line, func(a, b *corev1.Service) int {
		if order := a.Status.Conditions[0].LastTransitionTime.Compare(b.Status.Conditions[0].LastTransitionTime.Time); order != 0 {
			return order
		}
		if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
			return order
		}
		return cmp.Compare(a.Name, b.Name)
	})
	next()
	must(t, e.client.Delete(t.Context(), holder))
	next()
}

func quotas(t *testing.T, e *environment) {
	scrape := freeAddress(t)
	e.run(t, "--metrics-bind-address="+scrape, "--metrics-secure=false")
	pool := e.pool(t, "main", func(spec *millracev1beta1.VIPPoolSpec) {
		spec.SharingScope = millracev1beta1.ShareInCluster
		spec.PerNamespace = &millracev1beta1.NamespaceQuota{Max: 3}
	}, "203.0.113.0/28")
	first := e.service(t, "first", annotated(millracev1beta1.AnnotationSharingKey, "dns"))
	e.addresses(t, first, "203.0.113.0")
	e.addresses(t, e.service(t, "second"), "203.0.113.1")
	third := e.service(t, "third")
	e.addresses(t, third, "203.0.113.2")
	// A nearly used quota is reported before any refusal.
	eventually(t, func(ctx context.Context) error {
		return e.warning(ctx, third, millracev1beta1.ReasonQuotaNearlyExceeded,
			`with this Service, namespace "shop" uses 3 of its quota of 3 addresses of pool "main"`)
	})
	over := e.service(t, "over")
	e.condition(t, over, metav1.ConditionFalse, millracev1beta1.ReasonQuotaExceeded,
		`namespace "shop" uses 3 of its quota of 3 addresses of pool "main", and the Service requires 1 more: `+
			"delete Services, share an address (millrace.io/sharing-key), or raise spec.perNamespace of the pool")
	scraped(t, scrape, `millrace_pool_quota_addresses{namespace="shop",pool="main"} 3`,
		`millrace_pool_quota_used_addresses{namespace="shop",pool="main"} 3`, `millrace_services_pending{reason="QuotaExceeded"} 1`)
	// Sharing an address within a namespace is free; other namespaces are charged.
	e.addresses(t, e.service(t, "shares", annotated(millracev1beta1.AnnotationSharingKey, "dns"), ports("53/UDP")), "203.0.113.0")
	elsewhere := func(service *corev1.Service) { service.Namespace = otherNamespace }
	e.addresses(t, e.service(t, "joins", elsewhere, annotated(millracev1beta1.AnnotationSharingKey, "dns"), ports("54/UDP")), "203.0.113.0")
	e.addresses(t, e.service(t, "other", elsewhere), "203.0.113.3")
	scraped(t, scrape, `millrace_pool_quota_used_addresses{namespace="office",pool="main"} 2`)

	must(t, e.client.Delete(t.Context(), third))
	e.addresses(t, over, "203.0.113.4")
	late := e.service(t, "late")
	e.condition(t, late, metav1.ConditionFalse, millracev1beta1.ReasonQuotaExceeded, "")
	update(t, e, pool, func(pool *millracev1beta1.VIPPool) {
		pool.Spec.PerNamespace.Overrides = []millracev1beta1.NamespaceQuotaOverride{{
			NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": namespace}}, Max: 4,
		}}
	})
	e.addresses(t, late, "203.0.113.5")
	// A lower quota releases no address, not even of a Service that changes.
	update(t, e, pool, func(pool *millracev1beta1.VIPPool) {
		pool.Spec.PerNamespace = &millracev1beta1.NamespaceQuota{Max: 0}
	})
	update(t, e, late, func(service *corev1.Service) { service.Spec.Ports[0].Port = 81 })
	none := e.service(t, "none")
	e.condition(t, none, metav1.ConditionFalse, millracev1beta1.ReasonQuotaExceeded, "uses 4 of its quota of 0 addresses")
	e.addresses(t, late, "203.0.113.5")
	e.addresses(t, over, "203.0.113.4")
	e.addresses(t, first, "203.0.113.0")
}

// reservedByCommand reserves addresses while an operator assigns those of the same pool.
func reservedByCommand(t *testing.T, e *environment) {
	cli := filepath.Join(t.TempDir(), "millrace")
	output, err := exec.Command("go", "build", "-o", cli, "../cmd/millrace").CombinedOutput()
	if err != nil {
		t.Fatalf("build millrace: %v: %s", err, output)
	}
	kubeconfig, err := e.server.WriteKubeconfig(e.server.Admin().BearerToken)
	must(t, err)
	reserve := func(arguments ...string) (string, error) {
		output, err := exec.CommandContext(t.Context(), cli, append([]string{"--kubeconfig", kubeconfig, "reserve"}, arguments...)...).CombinedOutput()
		return strings.TrimSpace(string(output)), err
	}
	e.run(t)
	pool := e.pool(t, "main", func(spec *millracev1beta1.VIPPoolSpec) {
		spec.Avoid = []millracev1beta1.AvoidedAddress{millracev1beta1.AvoidSubnetRouterAnycast}
	}, "203.0.113.0/28", "2001:db8:cafe::/64")
	e.usable(t, pool, "203.0.113.0/28", "2001:db8:cafe::1-2001:db8:cafe:0:ffff:ffff:ffff:ffff")

	const each = 6
	var group errgroup.Group
	addresses := make([]string, each)
	for i := range each {
		group.Go(func() error {
			address, err := reserve("main")
			if err != nil {
				return fmt.Errorf("millrace reserve: %w: %s", err, address)
			}
			addresses[i] = address
			return nil
		})
		e.service(t, fmt.Sprintf("web%d", i))
	}
	must(t, group.Wait())
	e.allAssigned(t, 1)
	for _, address := range addresses {
		vip := vipOf(address)
		must(t, e.get(t.Context(), vip))
		if len(vip.Spec.Claims) > 0 || vip.Spec.Pool != "main" || vip.Spec.ReclaimPolicy != millracev1beta1.ReclaimRetain {
			t.Errorf("reserved VIP %s = %+v", address, vip.Spec)
		}
	}
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, pool); err != nil {
			return err
		}
		return counted(pool, 2*each, *pool.Status.Free)
	})

	family := families(corev1.IPFamilyPolicySingleStack, corev1.IPv6Protocol)
	named, err := reserve("main", "--family=IPv6", "--for="+namespace+"/named")
	if err != nil || named != "2001:db8:cafe::1" {
		t.Fatalf("reserved address = %s: %v", named, err)
	}
	e.addresses(t, e.service(t, "named", family), named)
	other, err := reserve("main", "--family=IPv6")
	if err != nil || other != "2001:db8:cafe::2" {
		t.Fatalf("reserved address = %s: %v", other, err)
	}
	service := e.service(t, "asks", family, annotated(millracev1beta1.AnnotationAddresses, "2001-db8-cafe-0-0-0-0-2"))
	e.addresses(t, service, other)
	must(t, e.client.Delete(t.Context(), service))
	e.gone(t, service)
	vip := vipOf("2001:db8:cafe::2")
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, vip); err != nil || vip.Status.Phase == millracev1beta1.VIPReserved {
			return err
		}
		return fmt.Errorf("phase of the VIP = %s", vip.Status.Phase)
	})

	for want, arguments := range map[string][]string{
		"no VIPPool none":                 {"none"},
		"must be IPv4 or IPv6":            {"main", "--family=6"},
		"must be NAMESPACE/NAME":          {"main", "--for=web"},
		"VIPPool main has no free IPv4 a": {"main"},
	} {
		if arguments[0] == "main" && len(arguments) == 1 {
			for range 16 - 2*each {
				if output, err := reserve("main"); err != nil {
					t.Errorf("millrace reserve: %v: %s", err, output)
				}
			}
		}
		if output, err := reserve(arguments...); err == nil || !strings.Contains(output, want) {
			t.Errorf("millrace reserve %v: %v: %s, want %q", arguments, err, output, want)
		}
	}
}
