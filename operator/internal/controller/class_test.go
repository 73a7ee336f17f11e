// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

const otherClass = "example.com/lb"

// Two operators may run, or this operator's flag may have changed.
func TestServiceOfAnotherOperator(t *testing.T) {
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), advertiseAll(), ours("web", nil))
	c.reconcile("web")
	c.expectIngress("web", "203.0.113.0")
	if noted := c.service("web").Annotations[millracev1beta1.AnnotationClass]; noted != millracev1beta1.Class {
		t.Fatalf("recorded class of the Service = %q", noted)
	}
	before, writes := c.service("web"), c.writes
	c.reconciler.class = otherClass
	c.reconcile("web")
	if after := c.service("web"); after.ResourceVersion != before.ResourceVersion || c.writes > writes {
		t.Errorf("the Service was changed to %+v", after)
	}

	// On deletion the address is released, whichever operator assigned it.
	if err := c.api.Delete(t.Context(), c.service("web")); err != nil {
		t.Fatal(err)
	}
	c.reconcile("web")
	if vips := c.vips(); len(vips) > 0 {
		t.Errorf("VIPs = %+v, want none", vips)
	}
}

// An operator creates a VIP before it writes to the Service, and others wait classTimeout before releasing
// it.
func TestUnrecordedServiceOfAnotherOperator(t *testing.T) {
	web := ours("web", func(service *corev1.Service) {
		other := otherClass
		service.Spec.LoadBalancerClass = &other
	})
	vip := &millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: "203.0.113.0", UID: "v", CreationTimestamp: metav1.Unix(2e9, 0)},
		Spec: millracev1beta1.VIPSpec{
			Address: "203.0.113.0", Pool: "main", Claims: []millracev1beta1.VIPClaim{{Namespace: "shop", Name: "web", UID: string(web.GetUID())}},
		},
	}
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), web, vip)
	c.reconciler.vips.put(&c.vips()[0])
	c.reconciler.now = func() time.Time { return vip.CreationTimestamp.Time }
	if again := c.after(0, "web"); again != classTimeout || len(c.vips()) != 1 || len(c.vips()[0].Spec.Claims) != 1 {
		t.Errorf("requeued after %s, VIPs = %+v", again, c.vips())
	}
	if again := c.after(classTimeout, "web"); again != 0 || len(c.vips()) != 0 {
		t.Errorf("class not recorded: requeued after %s, VIPs = %+v", again, c.vips())
	}
}

// A Service that moved to another load balancer releases its address, even if no operator ran meanwhile.
func TestServiceThatMovedAway(t *testing.T) {
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), advertiseAll(), ours("web", nil))
	c.reconcile("web")
	c.change("web", func(service *corev1.Service) {
		other := otherClass
		service.Spec.LoadBalancerClass = &other
	})
	c.expectIngress("web")
	web := c.service("web")
	if len(web.Finalizers)+len(web.Annotations)+len(web.Status.Conditions) > 0 || len(c.vips()) > 0 {
		t.Errorf("remaining: %v, %v, %+v and %+v", web.Finalizers, web.Annotations, web.Status.Conditions, c.vips())
	}
}
