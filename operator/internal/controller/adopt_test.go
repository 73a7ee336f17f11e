// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/convert"
)

// With AdoptOnly, addresses in statuses are claimed, shared ones included, and no others are assigned.
func TestAdoptOnly(t *testing.T) {
	others, err := convert.ParseAnnotations("metallb")
	if err != nil {
		t.Fatal(err)
	}
	shared := func(port int32) func(*corev1.Service) {
		return func(service *corev1.Service) {
			service.Annotations = map[string]string{"metallb.universe.tf/allow-shared-ip": "key"}
			service.Spec.Ports[0].Port = port
			service.Status.LoadBalancer.Ingress = at("203.0.113.2")
		}
	}
	given := func(address string) func(*corev1.Service) {
		return func(service *corev1.Service) { service.Status.LoadBalancer.Ingress = at(address) }
	}
	objects := []client.Object{poolOf(millracev1beta1.ReclaimDelete), advertiseAll()}
	services := []*corev1.Service{
		ours("given", given("203.0.113.3")), ours("web", shared(80)), ours("secure", shared(443)), ours("new", nil),
		ours("elsewhere", given("198.51.100.7")), ours("taken", given("203.0.113.3")),
	}
	for _, service := range services {
		service.UID = types.UID(service.Name)
		objects = append(objects, service)
	}
	c := newCluster(t, objects...)
	c.reconciler.parser = convert.Parser{Others: others, AdoptOnly: true}
	for _, service := range services {
		c.reconcile(service.Name)
	}
	c.expectIngress("given", "203.0.113.3")
	c.expectIngress("web", "203.0.113.2")
	c.expectIngress("secure", "203.0.113.2")
	c.expectIngress("new")
	c.expectIngress("elsewhere", "198.51.100.7")
	c.expectIngress("taken", "203.0.113.3")
	for name, want := range map[string]string{
		"given": millracev1beta1.ReasonAddressAssigned, "web": millracev1beta1.ReasonAddressAssigned, "secure": millracev1beta1.ReasonAddressAssigned,
		"new": millracev1beta1.ReasonNoAddressToAdopt, "elsewhere": millracev1beta1.ReasonForeignAddress,
		"taken": millracev1beta1.ReasonForeignAddress,
	} {
		if reason := c.reasonOfAssigned(name); reason != want {
			t.Errorf("reason of AddressAssigned on %s = %s, want %s", name, reason, want)
		}
	}
	if vips := c.vips(); len(vips) != 2 {
		t.Errorf("%d VIPs, want those of two Services: %+v", len(vips), vips)
	}
	c.setIngress("new", "203.0.113.1")
	c.expectIngress("new", "203.0.113.1")
	if reason := c.reasonOfAssigned("new"); reason != millracev1beta1.ReasonAddressAssigned {
		t.Errorf("after another load balancer assigned an address: %s", reason)
	}
	c.setIngress("new", "203.0.113.0")
	c.expectIngress("new", "203.0.113.0")
	c.setIngress("given")
	c.expectIngress("given", "203.0.113.3")
}
