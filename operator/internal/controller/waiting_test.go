// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

func (c *cluster) add(name string, change func(*corev1.Service)) {
	c.t.Helper()
	service := ours(name, change)
	service.UID = types.UID("uid of " + name)
	if err := c.api.Create(c.t.Context(), service); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) remove(name string) {
	c.t.Helper()
	if err := c.api.Delete(c.t.Context(), c.service(name)); err != nil {
		c.t.Fatal(err)
	}
	c.reconcile(name)
}

// has compares the addresses of Services; "-" is none.
func (c *cluster) has(want map[string]string) {
	c.t.Helper()
	for name, address := range want {
		got := "-"
		if ingress := c.service(name).Status.LoadBalancer.Ingress; len(ingress) > 0 {
			got = ingress[0].IP
		}
		if got != address {
			c.t.Errorf("address of %s = %s, want %s", name, got, address)
		}
	}
}

func poolWith(addresses ...string) *millracev1beta1.VIPPool {
	return &millracev1beta1.VIPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "main"}, Spec: millracev1beta1.VIPPoolSpec{Addresses: addresses},
	}
}

// A released address is assigned to the Service that has waited longest, whichever is reconciled first.
func TestLongestWaitingIsServedFirst(t *testing.T) {
	c := newCluster(t, poolWith("203.0.113.0/31"))
	for _, name := range []string{"one", "two", "c-first", "b-second", "a-third"} {
		c.add(name, nil)
		c.reconcile(name)
	}
	c.remove("one")
	c.add("new", nil)
	c.reconcile("new")
	c.has(map[string]string{"c-first": "203.0.113.0", "b-second": "-", "a-third": "-", "new": "-"})

	// Requests for addresses that no other Service requests do not have to wait.
	update := func(service *corev1.Service) {
		service.Annotations = map[string]string{millracev1beta1.AnnotationAddresses: "198.51.100.1"}
	}
	other := poolWith("198.51.100.0/31")
	other.Name, other.Spec.AutoAssign = "other", new(bool)
	if err := c.api.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	c.add("asks", update)
	c.reconcile("asks")
	c.has(map[string]string{"asks": "198.51.100.1", "b-second": "-"})

	pool := &millracev1beta1.VIPPool{}
	if err := c.api.Get(t.Context(), client.ObjectKey{Name: "main"}, pool); err != nil {
		t.Fatal(err)
	}
	pool.Spec.Addresses, pool.Generation = []string{"203.0.113.0/31", "203.0.113.8/31"}, pool.Generation+1
	if err := c.api.Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	c.reconcile("new")
	c.has(map[string]string{"b-second": "203.0.113.8", "a-third": "203.0.113.9", "new": "-"})
}

// The waiting time is in the condition, so a new operator keeps the order.
func TestQueueSurvivesOperatorRestart(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	waiting := func(seconds int) func(*corev1.Service) {
		return func(service *corev1.Service) {
			service.CreationTimestamp = metav1.NewTime(began)
			service.Status.Conditions = []metav1.Condition{{
				Type: millracev1beta1.ConditionAddressAssigned, Status: metav1.ConditionFalse, Reason: millracev1beta1.ReasonPoolExhausted,
				LastTransitionTime: metav1.NewTime(began.Add(time.Duration(seconds) * time.Second)),
			}}
		}
	}
	created := func(seconds int) func(*corev1.Service) {
		return func(service *corev1.Service) {
			service.CreationTimestamp = metav1.NewTime(began.Add(time.Duration(seconds) * time.Second))
		}
	}
	for name, test := range map[string]struct {
		services map[string]func(*corev1.Service)
		line     []string
	}{
		"by condition":        {map[string]func(*corev1.Service){"a": waiting(7), "b": waiting(5), "c": waiting(6)}, []string{"b", "c", "a"}},
		"without a condition": {map[string]func(*corev1.Service){"a": created(7), "b": created(5), "c": waiting(6)}, []string{"b", "c", "a"}},
		"by name":             {map[string]func(*corev1.Service){"c": created(5), "b": created(5), "a": created(5)}, []string{"a", "b", "c"}},
	} {
		for _, first := range test.line {
			t.Run(fmt.Sprintf("%s, %s first", name, first), func(t *testing.T) {
				c := newCluster(t, poolWith("203.0.113.0/31"))
				for name, change := range test.services {
					c.add(name, change)
					c.reconciler.addWaiting(c.service(name), true)
				}
				c.reconcile(first)
				for _, other := range slices.Backward(test.line) {
					c.reconcile(other)
				}
				c.has(map[string]string{test.line[0]: "203.0.113.0", test.line[1]: "203.0.113.1", test.line[2]: "-"})
			})
		}
	}
}

// Otherwise each new Service would try thousands that wait for another pool.
func TestEarlierServicesWantSameAddress(t *testing.T) {
	l := newVIPCache()
	waiting := newWaitingServices(l)
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: name} }
	for i, name := range []string{"same", "untried", "address", "family", "pool", "now", "later"} {
		service := ours(name, nil)
		waiting.begin(service, began.Add(time.Duration(i)*time.Second))
	}
	wanted := netip.MustParseAddr("203.0.113.1")
	want := func(name string, want ipam.Want) {
		waiting.recordPlan(key(name), waiting.present())
		waiting.recordUnmet(key(name), unmetRequest{wants: []ipam.Want{want}})
	}
	want("same", ipam.Want{Pool: "main", Family: ipam.IPv4})
	want("address", ipam.Want{Address: wanted})
	want("family", ipam.Want{Pool: "main", Family: ipam.IPv6})
	want("pool", ipam.Want{Pool: "other", Family: ipam.IPv4})
	want("later", ipam.Want{Pool: "main", Family: ipam.IPv4})
	plan := ipam.Plan{Create: []ipam.Write{{Address: wanted, Pool: "main"}}}
	expect := func(what string, names ...string) {
		t.Helper()
		var got []string
		for _, ahead := range waiting.earlier(key("now"), plan) {
			got = append(got, ahead.Name)
		}
		if !slices.Equal(got, names) {
			t.Errorf("%s: first %v, want %v", what, got, names)
		}
	}
	expect("before anything changes", "untried")
	l.changes.Add(1)
	expect("after the release of an address", "same", "untried", "address")
	want("same", ipam.Want{Pool: "main", Family: ipam.IPv4})
	waiting.recordPlan(key("untried"), waiting.present())
	waiting.recordUnmet(key("untried"), unmetRequest{})
	expect("after two attempts", "address")
	waiting.markAffected(func(waiting *waiter) bool { return waiting.name.Name != "pool" })
	expect("after a change of a pool for most Services", "same", "untried", "address", "family")
}
