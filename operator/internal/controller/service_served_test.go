// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
	"github.com/millrace-lb/millrace/operator/internal/validation"
)

func TestServedCondition(t *testing.T) {
	problems := []validation.Problem{{Reason: "NotSelected", Message: "not selected"}, {Reason: "Invalid", Message: "wrong"}}
	for _, test := range []struct {
		verdict validation.Result
		want    string
	}{
		{validation.Result{}, "True Served "},
		{validation.Result{Notes: []string{"ignored"}}, "True Served ignored"},
		{validation.Result{Problems: problems, Notes: []string{"ignored"}}, "False NotSelected not selected; wrong; ignored"},
	} {
		condition := servedCondition(test.verdict)
		if got := fmt.Sprintf("%s %s %s", condition.Status, condition.Reason, condition.Message); got != test.want {
			t.Errorf("condition = %q, want %q", got, test.want)
		}
	}
}

func TestPortStatuses(t *testing.T) {
	service := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
		{Port: 53, Protocol: "TCP"}, {Port: 53, Protocol: "UDP"},
	}}}
	failed := []validation.PortError{{Address: address, Port: ipam.Port{Number: 53, Protocol: "UDP"}, Reason: "PortConflict"}}
	statuses := portStatuses(service, address.String(), failed)
	if len(statuses) != 2 || statuses[0].Error != nil || statuses[1].Error == nil || *statuses[1].Error != "millrace.io/PortConflict" ||
		statuses[1].Port != 53 || statuses[1].Protocol != "UDP" {
		t.Errorf("port statuses = %+v", statuses)
	}
	if other := portStatuses(service, "203.0.113.10", failed); other != nil {
		t.Errorf("port statuses of another address = %+v", other)
	}
	service.Status.LoadBalancer.Ingress = ingressOf(service, []netip.Addr{address}, failed, nil)
	present := &service.Status.LoadBalancer.Ingress[0]
	if again := ingressOf(service, []netip.Addr{address}, failed, nil); &again[0] != present {
		t.Error("unchanged port statuses were replaced")
	}
}

func TestZoneTracker(t *testing.T) {
	c := newZoneTracker(newVIPCache())
	step := func(node, zone string, count int, concerns bool) {
		t.Helper()
		if got := c.set(node, zone); got != concerns || c.count() != count {
			t.Errorf("set(%s, %q) = %v with %d zones, want %v with %d", node, zone, got, c.count(), concerns, count)
		}
	}
	for i := range validation.MaxZones {
		step(fmt.Sprintf("n%d", i), fmt.Sprintf("z%d", i), i+1, false)
	}
	step("none", "", validation.MaxZones, false)
	step("second", "z0", validation.MaxZones, false)
	step("eighth", "z7", validation.MaxZones+1, true)
	step("eighth", "z7", validation.MaxZones+1, false)
	step("second", "", validation.MaxZones+1, false)
	step("n0", "", validation.MaxZones, true)
	step("n1", "", validation.MaxZones-1, false)
}

// Services are enqueued when their first node changes, or "one" becomes "several".
func TestCapacityTracker(t *testing.T) {
	c := newCapacityTracker()
	web, dns := types.NamespacedName{Namespace: "shop", Name: "web"}, types.NamespacedName{Namespace: "shop", Name: "dns"}
	step := func(node string, services []types.NamespacedName, want string, concerned ...types.NamespacedName) {
		t.Helper()
		var references []millracev1beta1.ServiceReference
		for _, service := range services {
			references = append(references, millracev1beta1.ServiceReference{Namespace: service.Namespace, Name: service.Name})
		}
		got := sets.New(c.set(node, references)...)
		if !got.Equal(sets.New(concerned...)) || c.nodesOf(web) != want {
			t.Errorf("%s affects %v, want %v; nodes = %q, want %q", node, got, concerned, c.nodesOf(web), want)
		}
	}
	both := []types.NamespacedName{web, dns}
	step("b", []types.NamespacedName{web}, "b", web)
	step("b", both, "b", dns)
	step("c", both, "b and others", web, dns)
	step("d", []types.NamespacedName{web}, "b and others")
	step("a", []types.NamespacedName{web}, "a and others", web)
	step("a", nil, "b and others", web)
	step("d", nil, "b and others")
	step("c", nil, "b", web, dns)
	step("b", nil, "", web, dns)
	if len(c.nodes)+len(c.byNode) > 0 {
		t.Errorf("remaining: %v and %v", c.nodes, c.byNode)
	}
}

// New Services precede Services that are only checked again.
func TestServedAreReconciledLast(t *testing.T) {
	l := newVIPCache()
	for _, name := range []string{"1", "2", "3"} {
		vip := vipAt(name, types.UID(name), "old-"+name)
		vip.Name = "203.0.113." + name
		vip.Spec.Address = vip.Name
		l.put(vip)
	}
	q := priorityqueue.New[reconcile.Request]("served")
	defer q.ShutDown()
	await := func(length int) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); q.Len() < length; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("queue length %d, want %d", q.Len(), length)
			}
		}
	}
	enqueueServed(l, q)
	await(3)
	fresh := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "new"}}
	q.Add(fresh)
	await(4)
	if first, _ := q.Get(); first != fresh {
		t.Errorf("first item = %s, want the new one", first)
	}
}
