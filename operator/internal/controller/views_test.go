// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Changes requeue only the Services that they may affect, a few at a time.
func TestViewsRequeueAffectedServices(t *testing.T) {
	const waiting = 100
	other := poolWith("203.0.113.8/31")
	other.Name = "other"
	other.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rich": "yes"}}
	w := newQueued(t, poolWith("203.0.113.0/32"), other)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range waiting + 1 {
		must(w.create(ours(fmt.Sprintf("web-%04d", i), nil)))
	}
	service := ours("asks", nil)
	service.Annotations = map[string]string{millracev1beta1.AnnotationAddresses: "203.0.113.10"}
	must(w.create(service))
	must(w.rest())
	number := int64(0)
	edit := func(name string, change func(*millracev1beta1.VIPPoolSpec)) {
		pool := &millracev1beta1.VIPPool{}
		must(w.api.Get(t.Context(), types.NamespacedName{Name: name}, pool))
		number++
		pool.Generation = number
		change(&pool.Spec)
		must(w.api.Update(t.Context(), pool))
		poolEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: pool, ObjectNew: pool}, w.queue)
	}
	label := func(key string) {
		shop := &corev1.Namespace{}
		must(w.api.Get(t.Context(), types.NamespacedName{Name: "shop"}, shop))
		shop.Labels = map[string]string{key: "yes"}
		must(w.api.Update(t.Context(), shop))
		namespaceEvents(w.reconciler.waiting).Update(t.Context(), event.UpdateEvent{ObjectOld: shop, ObjectNew: shop}, w.queue)
	}
	expect := func(what string, looks int, assigned ...string) {
		t.Helper()
		w.looks = 0
		most := 0
		for w.show(); w.queue.Len() > 0; w.show() {
			most = max(most, w.queue.Len())
			must(w.look())
		}
		if w.looks < looks || w.looks > looks+4 || most > serviceWorkers+2 {
			t.Errorf("%s: %d reconciliations, at most %d queued; want %d reconciliations", what, w.looks, most, looks)
		}
		for _, name := range assigned {
			if len(w.service(name).Status.LoadBalancer.Ingress) == 0 {
				t.Errorf("%s: %s has no address", what, name)
			}
		}
	}
	label("nobody.asks")
	expect("label not used by any pool", 1)
	edit("other", func(spec *millracev1beta1.VIPPoolSpec) { spec.Addresses = []string{"203.0.113.8/30"} })
	// The Service that requests an address is requeued, because the pool may contain it.
	expect("pool not available to them", 2)
	hosts, changed := w.reconciler.pools.put(occupant{kind: "Node", name: "node"}, desired.OccupiedByNode(&corev1.Node{
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.51.100.1"}}},
	}))
	if !changed || len(hosts) != 1 {
		t.Errorf("networks = %v, changed = %t after adding a node address", hosts, changed)
	}
	w.queue.Add(allPoolsRequest)
	expect("address of a node", 1)
	label("rich")
	expect("label that selects a pool", waiting, "web-0001", "web-0004")
	edit("main", func(spec *millracev1beta1.VIPPoolSpec) { spec.Addresses = []string{"203.0.113.0/31"} })
	expect("capacity in their pool", waiting-4, "web-0005")
}

func (w *queued) changeViews(t *rapid.T) error {
	if rapid.Bool().Draw(t, "namespace changes") {
		farm := &corev1.Namespace{}
		if err := w.api.Get(w.t.Context(), types.NamespacedName{Name: "farm"}, farm); err != nil {
			return err
		}
		before := farm.DeepCopy()
		farm.Labels = map[string]string{rapid.SampledFrom([]string{"kubernetes.io/metadata.name", "nobody.asks"}).Draw(t, "label"): "farm"}
		w.pending = append(w.pending, func() {
			namespaceEvents(w.reconciler.waiting).Update(w.t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: farm}, w.queue)
		})
		return w.api.Update(w.t.Context(), farm)
	}
	pool := &millracev1beta1.VIPPool{}
	if err := w.api.Get(w.t.Context(), types.NamespacedName{Name: "other"}, pool); err != nil {
		return err
	}
	pool.Generation++
	switch rapid.IntRange(0, 2).Draw(t, "pool changes") {
	case 0:
		pool.Spec.Addresses = []string{rapid.SampledFrom([]string{"203.0.113.8/31", "203.0.113.8/30"}).Draw(t, "addresses"), "2001:db8::8/127"}
	case 1:
		pool.Spec.NamespaceSelector = nil
	case 2:
		pool.Spec.PerNamespace = nil
	}
	w.pending = append(w.pending, func() {
		poolEvents().Update(w.t.Context(), event.UpdateEvent{ObjectOld: pool, ObjectNew: pool}, w.queue)
	})
	return w.api.Update(w.t.Context(), pool)
}
