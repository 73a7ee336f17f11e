// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

func ofOthers(name string, entries ...corev1.LoadBalancerIngress) *corev1.Service {
	return ours(name, func(service *corev1.Service) {
		service.Spec.LoadBalancerClass, service.UID = nil, types.UID(name)
		service.Finalizers = []string{millracev1beta1.SharedFinalizer}
		service.Status.LoadBalancer.Ingress = entries
	})
}

func at(addresses ...string) []corev1.LoadBalancerIngress {
	var entries []corev1.LoadBalancerIngress
	for _, address := range addresses {
		entries = append(entries, corev1.LoadBalancerIngress{IP: address})
	}
	return entries
}

func (c *cluster) names(service string) []string {
	c.t.Helper()
	var names []string
	for _, entry := range c.service(service).Status.LoadBalancer.Ingress {
		names = append(names, entry.IP+entry.Hostname)
	}
	return names
}

func (c *cluster) expectIngress(service string, want ...string) {
	c.t.Helper()
	if got := c.names(service); !slices.Equal(got, want) {
		c.t.Errorf("addresses of %s = %q, want %q", service, got, want)
	}
}

func (c *cluster) reasonOfAssigned(service string) string {
	for _, condition := range c.service(service).Status.Conditions {
		if condition.Type == millracev1beta1.ConditionAddressAssigned {
			return condition.Reason
		}
	}
	return ""
}

// Addresses and finalizers of another load balancer are preserved, with and without a pool.
func TestForeignAddressesRemain(t *testing.T) {
	for name, pools := range map[string][]client.Object{
		"without a pool": nil,
		"with a pool":    {poolOf(millracev1beta1.ReclaimDelete)},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, append(pools,
				ofOthers("web", at("198.51.100.77")...),
				ofOthers("cloud", corev1.LoadBalancerIngress{Hostname: "lb.example.com"}),
				ofOthers("both", at("198.51.100.78", "2001:db8::78")...))...)
			c.reconciler.isDefault = true
			for service, want := range map[string][]string{
				"web": {"198.51.100.77"}, "cloud": {"lb.example.com"}, "both": {"198.51.100.78", "2001:db8::78"},
			} {
				c.reconcile(service)
				c.expectIngress(service, want...)
				if reason := c.reasonOfAssigned(service); reason != millracev1beta1.ReasonForeignAddress {
					t.Errorf("reason of %s = %q", service, reason)
				}
			}
			if vips := c.vips(); len(vips) > 0 {
				t.Errorf("VIPs = %+v, want none", vips)
			}

			c.reconciler.isDefault = false
			c.reconcile("web")
			c.expectIngress("web", "198.51.100.77")
			web := c.service("web")
			if len(web.Status.Conditions) > 0 || !slices.Equal(web.Finalizers, []string{millracev1beta1.SharedFinalizer}) {
				t.Errorf("remaining: %v and %+v", web.Finalizers, web.Status.Conditions)
			}
			c.reconciler.isDefault = true
			if err := c.api.Delete(t.Context(), c.service("cloud")); err != nil {
				t.Fatal(err)
			}
			c.reconcile("cloud")
			if finalizers := c.service("cloud").Finalizers; !slices.Equal(finalizers, []string{millracev1beta1.SharedFinalizer}) {
				t.Errorf("finalizers of a Service of another load balancer = %v", finalizers)
			}
		})
	}
}

// The first Service with an address of a pool claims it; others need a common sharing key.
func TestForeignAddressesAdopted(t *testing.T) {
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete),
		ofOthers("web", at("203.0.113.2")...), ofOthers("dns", at("203.0.113.2")...))
	c.reconciler.isDefault = true
	for _, name := range []string{"web", "dns"} {
		c.reconcile(name)
		c.expectIngress(name, "203.0.113.2")
	}
	if reason := c.reasonOfAssigned("web"); reason != millracev1beta1.ReasonAddressAssigned {
		t.Errorf("reason of the first Service = %q", reason)
	}
	if reason := c.reasonOfAssigned("dns"); reason != millracev1beta1.ReasonForeignAddress {
		t.Errorf("reason of the second Service = %q", reason)
	}
	for _, name := range []string{"web", "dns"} {
		c.change(name, func(service *corev1.Service) {
			service.Annotations = map[string]string{millracev1beta1.AnnotationSharingKey: "edge"}
			service.Spec.Ports[0].Port = map[string]int32{"web": 80, "dns": 53}[name]
		})
	}
	c.expectIngress("dns", "203.0.113.2")
	if reason := c.reasonOfAssigned("dns"); reason != millracev1beta1.ReasonAddressAssigned {
		t.Errorf("reason of the second Service = %q", reason)
	}
}

// An address that another operator has assigned is not foreign if the watch of VIPs still shows its
// previous owner.
func TestAddressOfAnotherOperatorIsNotForeign(t *testing.T) {
	web := ours("web", func(service *corev1.Service) { service.Status.LoadBalancer.Ingress = at("203.0.113.2") })
	vip := newVIP(ipam.Write{Address: netip.MustParseAddr("203.0.113.2"), Pool: "main", Claim: ipam.Claim{
		Owner: ipam.Owner{Namespace: "shop", Name: "web", UID: string(web.UID)},
	}})
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), web, vip, advertiseAll())
	stale := vip.DeepCopy()
	stale.ResourceVersion, stale.Spec.Claims[0].Name, stale.Spec.Claims[0].UID = "1", "previous", "previous"
	c.reconciler.vips.put(stale)
	c.reconcile("web")
	c.expectIngress("web", "203.0.113.2")
	if reason := c.reasonOfAssigned("web"); reason != millracev1beta1.ReasonAddressAssigned || len(c.vips()) != 1 {
		t.Errorf("reason = %q, VIPs = %+v", reason, c.vips())
	}
}

func TestServiceIsServedOnceItsForeignAddressIsGone(t *testing.T) {
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), ofOthers("web", at("198.51.100.77")...))
	c.reconciler.isDefault = true
	c.reconcile("web")
	c.setIngress("web")
	c.expectIngress("web", "203.0.113.0")
}

func (c *cluster) setIngress(name string, addresses ...string) {
	c.t.Helper()
	service := c.service(name)
	service.Status.LoadBalancer.Ingress = at(addresses...)
	if err := c.api.Status().Update(c.t.Context(), service); err != nil {
		c.t.Fatal(err)
	}
	c.reconcile(name)
}

// Foreign entries remain after the assigned address.
func TestForeignAndOwnAddress(t *testing.T) {
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil), advertiseAll())
	c.reconcile("web")
	c.setIngress("web", "198.51.100.77")
	c.expectIngress("web", "203.0.113.0", "198.51.100.77")
	foreign := "status.loadBalancer.ingress also has 198.51.100.77, which is not a VIP of the Service: " +
		"stop the other load balancer for this Service, then remove the entry"
	c.expect("web", millracev1beta1.ConditionServed, "False ForeignAddress "+foreign, "Warning ForeignAddress "+foreign)

	c.setIngress("web", "203.0.113.0")
	vip := &c.vips()[0]
	if err := c.api.Delete(t.Context(), vip); err != nil {
		t.Fatal(err)
	}
	c.reconciler.vips.remove(vip)
	if err := c.api.Delete(t.Context(), poolOf(millracev1beta1.ReclaimDelete)); err != nil {
		t.Fatal(err)
	}
	c.reconcile("web")
	c.expectIngress("web")
}

// Status patches fail if another load balancer added an entry meanwhile.
func TestIngressPatchRequiresReadVersion(t *testing.T) {
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), ofOthers("web"))
	c.reconciler.isDefault = true
	stale := c.service("web")
	service := c.service("web")
	service.Status.LoadBalancer.Ingress = at("198.51.100.77")
	if err := c.api.Status().Update(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	base := stale.DeepCopy()
	stale.Status.LoadBalancer.Ingress = at("203.0.113.0")
	if err := c.reconciler.patchServiceStatus(t.Context(), base, stale); err == nil {
		t.Error("no error for a write with a stale version")
	}
	c.expectIngress("web", "198.51.100.77")
}
