// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
)

// views holds the pools and namespace labels that plans use. A change requeues only the waiting Services
// that it may affect, because needless passes in a large cluster would delay other Services.
type views struct {
	number uint64
	// pools is the view of the last plan; its number is 0 before the first one.
	pools      poolView
	namespaces map[string]labels.Set
}

func (w *waitingServices) viewPools(now poolView) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.views.pools
	if before.number == now.number {
		return
	}
	w.views.pools = now
	if before.number == 0 {
		return
	}
	changed := changedPools(before.usable, now.usable)
	if len(changed) == 0 {
		return
	}
	w.markAffected(func(waiting *waiter) bool {
		return waiting.unmet.isSpecific || slices.ContainsFunc(changed, func(pool desired.Pool) bool {
			return pool.Selects(w.views.namespaces[waiting.name.Namespace], waiting.unmet.labels)
		})
	})
}

// changedPools returns previous versions of changed or deleted pools, and new versions of changed or added
// ones.
func changedPools(before, now []desired.Pool) (changed []desired.Pool) {
	for _, pools := range [...][2][]desired.Pool{{before, now}, {now, before}} {
		for _, pool := range pools[0] {
			if !slices.ContainsFunc(pools[1], pool.Equal) {
				changed = append(changed, pool)
			}
		}
	}
	return changed
}

// viewNamespace stores a namespace's labels. Most labels do not matter to any pool.
func (w *waitingServices) viewNamespace(name string, now labels.Set) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, isKnown := w.views.namespaces[name]
	w.views.namespaces[name] = now
	differs := func(pool desired.Pool) bool { return !pool.IsSameFor(before, now) }
	if isKnown && !slices.ContainsFunc(w.views.pools.usable, differs) {
		return
	}
	w.markAffected(func(waiting *waiter) bool { return waiting.name.Namespace == name })
}

func (w *waitingServices) forgetNamespace(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.views.namespaces, name)
}

// markAffected marks the Services that a change of views may help or whose refusal it may make wrong,
// including those being planned, which may not have seen it. w.mu must be held.
func (w *waitingServices) markAffected(may func(*waiter) bool) {
	w.views.number++
	for _, waiting := range w.queue {
		if !waiting.isKnown || waiting.isPlanned || waiting.unmet.isOpen || may(waiting) {
			waiting.affectingView, w.requeuer.hasAffected = w.views.number, true
		}
	}
	w.requeuer.isDue = true
}

// allPoolsRequest is a request without a name that makes a worker check all pools.
var allPoolsRequest = reconcile.Request{}

func poolEvents() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{allPoolsRequest}
	})
}

func poolChanges() predicate.Predicate {
	return predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, wasPool := e.ObjectOld.(*millracev1beta1.VIPPool)
		now, isPool := e.ObjectNew.(*millracev1beta1.VIPPool)
		return wasPool && isPool && !slices.Equal(before.Status.Usable, now.Status.Usable)
	}})
}

// enqueueAllPools enqueues allPoolsRequest with a delay that coalesces events of many nodes.
func enqueueAllPools(q queue) { q.AddAfter(allPoolsRequest, control.Coalesce) }

func namespaceEvents(waiting *waitingServices) handler.EventHandler {
	note := func(q queue, namespace client.Object) {
		waiting.viewNamespace(namespace.GetName(), namespace.GetLabels())
		q.Add(allPoolsRequest)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { note(q, e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { note(q, e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) { waiting.forgetNamespace(e.Object.GetName()) },
	}
}
