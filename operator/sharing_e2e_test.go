// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func ports(texts ...string) option {
	return func(service *corev1.Service) {
		service.Spec.Ports = nil
		for _, text := range texts {
			port := corev1.ServicePort{Name: strings.ToLower(strings.ReplaceAll(text, "/", "-"))}
			if _, err := fmt.Sscanf(text, "%d/%s", &port.Port, &port.Protocol); err != nil {
				panic(err)
			}
			service.Spec.Ports = append(service.Spec.Ports, port)
		}
	}
}

func key(key string) option { return annotated(millracev1beta1.AnnotationSharingKey, key) }

func in(namespace string) option {
	return func(service *corev1.Service) { service.Namespace = namespace }
}

var bothFamilies = families(corev1.IPFamilyPolicyRequireDualStack)

// claims waits until a VIP has exactly these claims, as "name 53/UDP,80/TCP", in this order.
func (e *environment) claims(t *testing.T, address string, want ...string) *millracev1beta1.VIP {
	t.Helper()
	vip := vipOf(address)
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, vip); err != nil {
			return err
		}
		if got := claimTexts(vip); !slices.Equal(got, want) {
			return fmt.Errorf("claims of VIP %s = %q, want %q", address, got, want)
		}
		return nil
	})
	return vip
}

func claimTexts(vip *millracev1beta1.VIP) []string {
	var texts []string
	for _, claim := range vip.Spec.Claims {
		var ports []string
		for _, port := range claim.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", port.Port, port.Protocol))
		}
		texts = append(texts, claim.Name+" "+strings.Join(ports, ","))
	}
	return texts
}

func sharing(t *testing.T, e *environment) {
	e.run(t)
	pool := e.pool(t, "main", nil, "203.0.113.0/24", "2001:db8:cafe::/64")
	tcp := e.service(t, "dns-tcp", key("dns"), ports("53/TCP"), bothFamilies)
	e.addresses(t, tcp, "203.0.113.0", "2001:db8:cafe::")
	local := func(service *corev1.Service) {
		service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	udp := e.service(t, "dns-udp", key("dns"), ports("53/UDP"), bothFamilies, local)
	e.addresses(t, udp, "203.0.113.0", "2001:db8:cafe::")
	e.condition(t, udp, metav1.ConditionTrue, millracev1beta1.ReasonAddressAssigned, "has 203.0.113.0, 2001:db8:cafe::")
	vip := e.claims(t, "203.0.113.0", "dns-tcp 53/TCP", "dns-udp 53/UDP")
	e.claims(t, "2001:db8:cafe::", "dns-tcp 53/TCP", "dns-udp 53/UDP")
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, vip); err != nil || vip.Status.Services == "shop/dns-tcp, shop/dns-udp" {
			return err
		}
		return fmt.Errorf("Services in the status of the VIP = %q", vip.Status.Services)
	})
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, pool); err != nil {
			return err
		}
		if got := pool.Status.Assigned; got == nil || *got != 2 {
			return fmt.Errorf("status of the pool = %+v, want 2 assigned", pool.Status)
		}
		return nil
	})

	elsewhere := e.service(t, "elsewhere", key("dns"), ports("53/UDP"))
	e.addresses(t, elsewhere, "203.0.113.1")
	eventually(t, func(ctx context.Context) error {
		return e.event(ctx, elsewhere, millracev1beta1.ReasonSharedAddressUnavailable, `the address with the sharing key "dns" is not available: `+
			"ports of 203.0.113.0 are already used: 53/UDP (Service shop/dns-udp), so the Service gets 203.0.113.1")
	})
	must(t, e.client.Delete(t.Context(), elsewhere))
	e.gone(t, elsewhere)
	late := e.service(t, "late", func(service *corev1.Service) {
		service.Annotations = map[string]string{millracev1beta1.AnnotationSharingKey: "dns", millracev1beta1.AnnotationAddresses: "203.0.113.0"}
	}, ports("53/UDP", "80/TCP"))
	e.condition(t, late, metav1.ConditionFalse, millracev1beta1.ReasonPortConflict, "ports of 203.0.113.0 are already used: 53/UDP (Service shop/dns-udp)")
	e.addresses(t, late)
	alone := e.service(t, "alone", annotated(millracev1beta1.AnnotationAddresses, "203.0.113.0"), ports("80/TCP"))
	e.condition(t, alone, metav1.ConditionFalse, millracev1beta1.ReasonAddressInUse, "in use by Service shop/dns-tcp")
	e.claims(t, "203.0.113.0", "dns-tcp 53/TCP", "dns-udp 53/UDP")

	must(t, e.client.Delete(t.Context(), udp))
	e.gone(t, udp)
	e.addresses(t, late, "203.0.113.0")
	e.condition(t, late, metav1.ConditionTrue, millracev1beta1.ReasonAddressAssigned, "has 203.0.113.0")
	e.claims(t, "203.0.113.0", "dns-tcp 53/TCP", "late 53/UDP,80/TCP")
	e.claims(t, "2001:db8:cafe::", "dns-tcp 53/TCP")
	must(t, e.client.Delete(t.Context(), tcp))
	e.gone(t, tcp)
	if after := e.claims(t, "203.0.113.0", "late 53/UDP,80/TCP"); after.UID != vip.UID {
		t.Error("the VIP was recreated")
	}
	e.gone(t, vipOf("2001:db8:cafe::"))
	must(t, e.client.Delete(t.Context(), late))
	e.addresses(t, alone, "203.0.113.0")
	if after := e.claims(t, "203.0.113.0", "alone "); after.UID == vip.UID {
		t.Error("the VIP was not deleted with its last claim")
	}
}

func sharedPorts(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24")
	first := e.service(t, "first", ports("80/TCP"))
	e.addresses(t, first, "203.0.113.0")
	e.claims(t, "203.0.113.0", "first ")
	update(t, e, first, key("web"))
	e.claims(t, "203.0.113.0", "first 80/TCP")
	second := e.service(t, "second", key("web"), ports("81/TCP", "443/TCP"))
	e.addresses(t, second, "203.0.113.0")

	update(t, e, second, ports("80/TCP", "443/TCP"))
	e.condition(t, second, metav1.ConditionFalse, millracev1beta1.ReasonPortConflict,
		"has 203.0.113.0; ports of 203.0.113.0 are already used: 80/TCP (Service shop/first)")
	e.claims(t, "203.0.113.0", "first 80/TCP", "second 443/TCP")
	update(t, e, first, ports("80/TCP", "443/TCP", "8080/TCP"))
	e.condition(t, first, metav1.ConditionFalse, millracev1beta1.ReasonPortConflict,
		"has 203.0.113.0; ports of 203.0.113.0 are already used: 443/TCP (Service shop/second)")
	e.claims(t, "203.0.113.0", "first 80/TCP,8080/TCP", "second 443/TCP")
	e.addresses(t, first, "203.0.113.0")
	e.addresses(t, second, "203.0.113.0")

	update(t, e, first, ports("8080/TCP"))
	e.claims(t, "203.0.113.0", "first 8080/TCP", "second 80/TCP,443/TCP")
	e.condition(t, first, metav1.ConditionTrue, millracev1beta1.ReasonAddressAssigned, "has 203.0.113.0")
	e.condition(t, second, metav1.ConditionTrue, millracev1beta1.ReasonAddressAssigned, "has 203.0.113.0")

	// Without the key no Service joins; existing claims remain.
	update(t, e, first, func(service *corev1.Service) { service.Annotations = nil })
	eventually(t, func(ctx context.Context) error {
		vip := vipOf("203.0.113.0")
		if err := e.get(ctx, vip); err != nil || vip.Spec.Claims[0].SharingKey == "" {
			return err
		}
		return fmt.Errorf("sharing key of the first claim = %q, want none", vip.Spec.Claims[0].SharingKey)
	})
	third := e.service(t, "third", key("web"), ports("9/TCP"))
	e.condition(t, third, metav1.ConditionFalse, millracev1beta1.ReasonAddressInUse,
		`in use by Service shop/first, which does not have the sharing key "web"`)
	must(t, e.client.Delete(t.Context(), second))
	e.claims(t, "203.0.113.0", "first ")
	e.addresses(t, third, "203.0.113.1")
}

func sharedByNamespaces(t *testing.T, e *environment) {
	e.run(t)
	pool := e.pool(t, "main", nil, "203.0.113.0/24")
	first := e.service(t, "first", key("web"), ports("80/TCP"))
	e.addresses(t, first, "203.0.113.0")

	// The same key in another namespace is a different key.
	own := e.service(t, "own", in(otherNamespace), key("web"), ports("443/TCP"))
	e.addresses(t, own, "203.0.113.1")
	service := e.service(t, "asks", in(otherNamespace), ports("443/TCP"), func(service *corev1.Service) {
		service.Annotations = map[string]string{
			millracev1beta1.AnnotationSharingKey: "web", millracev1beta1.AnnotationAddresses: "203.0.113.0",
		}
	})
	e.condition(t, service, metav1.ConditionFalse, millracev1beta1.ReasonAddressInUse,
		"in use by Service shop/first, and the pool's sharingScope restricts each address to one namespace")
	e.claims(t, "203.0.113.0", "first 80/TCP")

	update(t, e, pool, func(pool *millracev1beta1.VIPPool) { pool.Spec.SharingScope = millracev1beta1.ShareInCluster })
	e.addresses(t, service, "203.0.113.0")
	e.claims(t, "203.0.113.0", "first 80/TCP", "asks 443/TCP")
	e.addresses(t, own, "203.0.113.1")

	// The Service keeps its address when the pool's scope changes.
	update(t, e, pool, func(pool *millracev1beta1.VIPPool) { pool.Spec.SharingScope = millracev1beta1.ShareInNamespace })
	update(t, e, service, ports("443/TCP", "8443/TCP"))
	e.claims(t, "203.0.113.0", "first 80/TCP", "asks 443/TCP,8443/TCP")
	late := e.service(t, "late", in(otherNamespace), key("web"), ports("22/TCP"))
	e.addresses(t, late, "203.0.113.1")
	e.claims(t, "203.0.113.1", "own 443/TCP", "late 22/TCP")
}

func sharedByHand(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24")
	first := e.service(t, "first", ports("80/TCP"))
	e.addresses(t, first, "203.0.113.0")
	vip := e.claims(t, "203.0.113.0", "first ")
	update(t, e, vip, func(vip *millracev1beta1.VIP) {
		vip.Spec.Claims = append(vip.Spec.Claims, millracev1beta1.VIPClaim{Namespace: otherNamespace, Name: "second"})
	})
	e.claims(t, "203.0.113.0", "first 80/TCP", "second ")
	second := e.service(t, "second", in(otherNamespace), ports("80/TCP", "443/TCP"))
	e.addresses(t, second, "203.0.113.0")
	e.condition(t, second, metav1.ConditionFalse, millracev1beta1.ReasonPortConflict, "80/TCP (Service shop/first)")
	e.claims(t, "203.0.113.0", "first 80/TCP", "second 443/TCP")
	must(t, e.client.Delete(t.Context(), first))
	e.claims(t, "203.0.113.0", "second ")
	e.condition(t, second, metav1.ConditionTrue, millracev1beta1.ReasonAddressAssigned, "has 203.0.113.0")
}

func (e *environment) sharers(t *testing.T, keys, each int) {
	t.Helper()
	for i := range each {
		for k := range keys {
			e.service(t, fmt.Sprintf("key%d-%d", k, i), key(fmt.Sprintf("key%d", k)), ports(fmt.Sprintf("%d/TCP", 1000+i)), bothFamilies)
		}
	}
}

func sharedRestart(t *testing.T, e *environment) {
	first := e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24", "2001:db8:cafe::/64")
	e.sharers(t, 5, 4)
	e.allAssigned(t, 2)
	before := e.assignments(t)
	e.checkSharers(t, 10)
	first.kill(t)

	// A new Service that is reconciled first gets another address.
	must(t, e.client.DeleteAllOf(t.Context(), &millracev1beta1.VIPPool{}))
	e.pool(t, "better", func(spec *millracev1beta1.VIPPoolSpec) { spec.Priority = 100 }, "203.0.113.0/24", "2001:db8:cafe::/64")
	thief := e.service(t, "a-thief", key("key0"), ports("1000/TCP"))
	second := e.service(t, "a-guest", key("key0"), ports("2000/TCP"))
	writes := len(e.awaitIdle(t, time.Second))
	e.run(t)
	e.condition(t, thief, metav1.ConditionTrue, millracev1beta1.ReasonAddressAssigned, "has 203.0.113.5")
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, second); err != nil || len(ingress(second)) == 1 {
			return err
		}
		return fmt.Errorf("addresses of the guest = %v", ingress(second))
	})
	e.sameAssignments(t, before)
	vip := vipOf(ingress(second)[0])
	must(t, e.get(t.Context(), vip))
	if got := claimTexts(vip); len(got) != 5 || got[4] != "a-guest 2000/TCP" {
		t.Errorf("claims of the guest's VIP = %q", got)
	}
	for _, write := range e.awaitIdle(t, 2*time.Second)[writes:] {
		if write.Name == "203.0.113.5" {
			continue
		}
		if write.Resource == "services" && !strings.HasPrefix(write.Name, "a-") || write.Resource == "vips" && write.Verb != "update" && write.Subresource == "" {
			t.Errorf("write after the restart: %+v", write)
		}
	}
}

// checkSharers checks that no port of a VIP has two owners, and the number of VIPs, unless 0, is right.
func (e *environment) checkSharers(t *testing.T, vips int) {
	t.Helper()
	list := &millracev1beta1.VIPList{}
	must(t, e.client.List(t.Context(), list))
	if vips > 0 && len(list.Items) != vips {
		t.Errorf("%d VIPs, want %d", len(list.Items), vips)
	}
	owned := map[string]string{}
	for i := range list.Items {
		vip := &list.Items[i]
		for _, claim := range vip.Spec.Claims {
			for _, port := range claim.Ports {
				place := fmt.Sprintf("%s %d/%s", vip.Spec.Address, port.Port, port.Protocol)
				if owner, taken := owned[place]; taken {
					t.Errorf("%s is owned by %s and %s", place, owner, claim.Name)
				}
				owned[place] = claim.Name
			}
		}
	}
	services := &corev1.ServiceList{}
	must(t, e.client.List(t.Context(), services, client.InNamespace(namespace)))
	for _, service := range services.Items {
		for _, address := range ingress(&service) {
			for _, port := range service.Spec.Ports {
				place := fmt.Sprintf("%s %d/%s", address, port.Port, port.Protocol)
				if owned[place] != service.Name {
					t.Errorf("%s is in the status of %s, but owned by %q", place, service.Name, owned[place])
				}
			}
		}
	}
}

func sharedSplitBrain(t *testing.T, e *environment) {
	e.pool(t, "main", nil, "203.0.113.0/24", "2001:db8:cafe::/64")
	e.run(t)
	e.run(t)
	e.sharers(t, 5, 6)
	// Of two Services with the same port and key, the first one gets it.
	services := make([]*corev1.Service, 0, 10)
	for k := range 5 {
		for _, name := range []string{"a", "b"} {
			services = append(services, e.service(t, fmt.Sprintf("rival%d%s", k, name), key(fmt.Sprintf("key%d", k)), ports("53/UDP"), bothFamilies))
		}
	}
	eventually(t, func(ctx context.Context) error {
		services := &corev1.ServiceList{}
		if err := e.client.List(ctx, services, client.InNamespace(namespace)); err != nil {
			return err
		}
		for i := range services.Items {
			service := &services.Items[i]
			if strings.HasPrefix(service.Name, "key") && len(ingress(service)) != 2 {
				return fmt.Errorf("addresses of Service %s = %v", service.Name, ingress(service))
			}
			if len(service.Status.Conditions) == 0 {
				return fmt.Errorf("Service %s was not reconciled", service.Name)
			}
		}
		return nil
	})
	e.awaitIdle(t, 2*time.Second)
	e.checkSharers(t, 0)
	for k := range 5 {
		a, b := services[2*k], services[2*k+1]
		must(t, e.get(t.Context(), a))
		must(t, e.get(t.Context(), b))
		shared := slices.ContainsFunc(ingress(a), func(address string) bool { return slices.Contains(ingress(b), address) })
		if shared || len(ingress(a))+len(ingress(b)) == 0 {
			t.Errorf("addresses of the competing Services = %v and %v", ingress(a), ingress(b))
		}
	}
}
