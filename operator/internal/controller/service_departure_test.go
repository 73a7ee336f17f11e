// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestReleaseAdvances(t *testing.T) {
	const draining, withdrawn = millracev1beta1.ReleaseDraining, millracev1beta1.ReleaseWithdrawn
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	since := func(phase millracev1beta1.ReleasePhase, ago time.Duration) *millracev1beta1.ClaimRelease {
		return &millracev1beta1.ClaimRelease{Phase: phase, Since: metav1.NewMicroTime(now.Add(-ago))}
	}
	for name, test := range map[string]struct {
		before *millracev1beta1.ClaimRelease
		delay  time.Duration
		want   *millracev1beta1.ClaimRelease
		again  time.Duration
	}{
		"begins":              {nil, 10 * time.Second, since(draining, 0), 10 * time.Second},
		"drains":              {since(draining, 4*time.Second), 10 * time.Second, since(draining, 4*time.Second), 6 * time.Second},
		"drained":             {since(draining, 10*time.Second), 10 * time.Second, since(withdrawn, 0), withdrawalTime},
		"withdrawn":           {since(withdrawn, time.Second), 10 * time.Second, since(withdrawn, time.Second), 2 * time.Second},
		"complete":            {since(withdrawn, withdrawalTime), 10 * time.Second, since(withdrawn, withdrawalTime), 0},
		"without a delay":     {nil, 0, nil, 0},
		"delay removed":       {since(draining, time.Second), 0, nil, 0},
		"clock was ahead":     {since(draining, -time.Hour), 10 * time.Second, since(draining, -time.Hour), 10 * time.Second},
		"clock was far ahead": {since(withdrawn, -time.Hour), 10 * time.Second, since(withdrawn, -time.Hour), withdrawalTime},
	} {
		got, again := advanceRelease(test.before, test.delay, now)
		if again != test.again || (got == nil) != (test.want == nil) || got != nil && *got != *test.want {
			t.Errorf("%s: %+v, requeue after %s; want %+v, %s", name, got, again, test.want, test.again)
		}
	}
}

func (c *cluster) after(wait time.Duration, name string) time.Duration {
	c.t.Helper()
	now := c.reconciler.now().Add(wait)
	c.reconciler.now = func() time.Time { return now }
	c.reconcile(name)
	result, err := c.reconciler.Reconcile(c.t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "shop", Name: name}})
	if err != nil {
		c.t.Fatal(err)
	}
	return result.RequeueAfter
}

func (c *cluster) phases() []string {
	c.t.Helper()
	var phases []string
	for _, vip := range c.vips() {
		for _, claim := range vip.Spec.Claims {
			phase := "kept"
			if claim.Release != nil {
				phase = string(claim.Release.Phase)
			}
			phases = append(phases, vip.Spec.Address+" "+phase)
		}
	}
	return phases
}

func (c *cluster) expectPhases(want ...string) {
	c.t.Helper()
	if got := c.phases(); !slices.Equal(got, want) {
		c.t.Errorf("claims = %q, want %q", got, want)
	}
}

func newDrainingCluster(t *testing.T, objects ...client.Object) *cluster {
	c := newCluster(t, objects...)
	c.reconciler.releaseDelay = 10 * time.Second
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c.reconciler.now = func() time.Time { return now }
	return c
}

// The operator may end between its writes, and the address be another Service's by then.
func TestDeletedServiceThatIsKeptShowsNoAddress(t *testing.T) {
	for writes, ended := 0, false; !ended; writes++ {
		c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", func(service *corev1.Service) {
			service.Finalizers = []string{"example.com/other"}
		}))
		c.reconcile("web")
		if err := c.api.Delete(t.Context(), c.service("web")); err != nil {
			t.Fatal(err)
		}
		whole := c.reconciler.client
		c.restart(ending(c.api, writes))
		_, err := c.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "shop", Name: "web"}})
		ended = err == nil
		c.restart(whole)
		c.reconcile("web")
		c.add("next", func(service *corev1.Service) {
			service.UID, service.Annotations = "2", map[string]string{millracev1beta1.AnnotationAddresses: "203.0.113.0"}
		})
		c.reconcile("next")
		c.expectIngress("next", "203.0.113.0")
		service := c.service("web")
		if !slices.Equal(service.Finalizers, []string{"example.com/other"}) || len(service.Status.LoadBalancer.Ingress)+len(service.Status.Conditions) > 0 {
			t.Errorf("after %d writes: finalizers %v, status %+v", writes, service.Finalizers, service.Status)
		}
	}
}

// A moved Service gets its new address immediately; the old one is released with a delay unless requested.
func TestMovedServiceDeparts(t *testing.T) {
	c := newDrainingCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil))
	c.reconcile("web")
	request := func(address string) {
		t.Helper()
		c.change("web", func(service *corev1.Service) {
			service.Annotations = map[string]string{millracev1beta1.AnnotationAddresses: address}
		})
		if ingress := c.service("web").Status.LoadBalancer.Ingress; len(ingress) != 1 || ingress[0].IP != address {
			t.Errorf("status = %+v, want %s", ingress, address)
		}
	}
	request("203.0.113.2")
	c.expectPhases("203.0.113.0 Draining", "203.0.113.2 kept")
	c.after(5*time.Second, "web")
	request("203.0.113.0")
	c.expectPhases("203.0.113.0 kept", "203.0.113.2 Draining")
	c.after(10*time.Second, "web")
	c.expectPhases("203.0.113.0 kept", "203.0.113.2 Withdrawn")

	c.change("web", func(service *corev1.Service) { service.Annotations = nil })
	c.expectPhases("203.0.113.0 kept", "203.0.113.2 Withdrawn")
	if again := c.after(withdrawalTime, "web"); again != 0 {
		t.Errorf("requeued after %s", again)
	}
	c.expectPhases("203.0.113.0 kept")
}

// A retained VIP is reserved after the release. A confirmed removal has no delay.
func TestDepartureEnds(t *testing.T) {
	for name, test := range map[string]struct {
		policy millracev1beta1.ReclaimPolicy
		change func(*corev1.Service)
		want   []string
	}{
		"confirmed": {millracev1beta1.ReclaimDelete, func(service *corev1.Service) {
			service.Annotations = map[string]string{millracev1beta1.AnnotationConfirmRemoval: ""}
		}, nil},
		"confirmed and retained": {millracev1beta1.ReclaimRetain, func(service *corev1.Service) {
			service.Annotations = map[string]string{millracev1beta1.AnnotationConfirmRemoval: ""}
		}, []string{"203.0.113.0 kept"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newDrainingCluster(t, poolOf(test.policy), ours("web", nil))
			c.reconcile("web")
			if err := c.api.Delete(t.Context(), c.service("web")); err != nil {
				t.Fatal(err)
			}
			c.after(0, "web")
			c.change("web", test.change)
			c.expectPhases(test.want...)
		})
	}
}

// A Service of another type or class releases its address like a deleted one.
func TestDepartureOfAServiceThatStays(t *testing.T) {
	for name, change := range map[string]func(*cluster){
		"changed type": func(c *cluster) {
			c.change("web", func(service *corev1.Service) {
				service.Spec.Type, service.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
			})
		},
		"changed class": func(c *cluster) {
			c.change("web", func(service *corev1.Service) {
				other := "example.com/lb"
				service.Spec.LoadBalancerClass = &other
			})
		},
		"no longer the default class": func(c *cluster) {
			c.change("web", func(service *corev1.Service) { service.Spec.LoadBalancerClass = nil })
			c.reconciler.isDefault = false
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newDrainingCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil))
			c.reconciler.isDefault = true
			c.reconcile("web")
			change(c)
			if again := c.after(0, "web"); again != 10*time.Second {
				t.Errorf("requeued after %s", again)
			}
			c.expectPhases("203.0.113.0 Draining")
			c.expectIngress("web")
			c.after(10*time.Second, "web")
			c.expectPhases("203.0.113.0 Withdrawn")
			c.after(withdrawalTime, "web")
			c.expectPhases()
			if service := c.service("web"); len(service.Finalizers)+len(service.Status.Conditions) > 0 {
				t.Errorf("remaining: %v and %+v", service.Finalizers, service.Status.Conditions)
			}
		})
	}
}
