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

// views holds the inputs of plans besides the ledger: pools and the labels of namespaces. A change requeues
// only the waiting Services that it may affect, because something always changes in a large cluster, and
// thousands of needless passes would delay other Services.
type views struct {
	// number counts the changes that affect any waiting Service.
	number uint64
	// pools is the view of the last plan; its number is 0 before the first one.
	pools poolView
	// namespaces holds the labels of all namespaces.
	namespaces map[string]labels.Set
}

// viewPools stores the pools for further plans.
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
	w.concern(func(waiting *waiter) bool {
		return waiting.wish.asks || slices.ContainsFunc(changed, func(pool desired.Pool) bool {
			return pool.Selects(w.views.namespaces[waiting.name.Namespace], waiting.wish.labels)
		})
	})
}

// changedPools returns the previous versions of changed or deleted pools, and the new versions of changed or
// added ones.
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

// viewNamespace stores the labels of a namespace. Most labels do not matter to any pool.
func (w *waitingServices) viewNamespace(name string, now labels.Set) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, isKnown := w.views.namespaces[name]
	w.views.namespaces[name] = now
	differs := func(pool desired.Pool) bool { return !pool.IsSameFor(before, now) }
	if isKnown && !slices.ContainsFunc(w.views.pools.usable, differs) {
		return
	}
	w.concern(func(waiting *waiter) bool { return waiting.name.Namespace == name })
}

func (w *waitingServices) forgetNamespace(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.views.namespaces, name)
}

// concern marks the Services that a change of views may help or whose reported refusal it may make wrong.
// Services that are being planned may or may not have seen the change and are marked as well. w.mu must be
// held.
func (w *waitingServices) concern(may func(*waiter) bool) {
	w.views.number++
	for _, waiting := range w.line {
		if !waiting.isKnown || waiting.isPlanned || waiting.wish.isOpen || may(waiting) {
			waiting.concerned, w.waking.isOwing = w.views.number, true
		}
	}
	w.waking.isDue = true
}

// lookAtPools is a request without a name that makes a worker check all pools.
var lookAtPools = reconcile.Request{}

// poolEvents enqueues lookAtPools.
func poolEvents() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{lookAtPools}
	})
}

// poolChanges passes events that may change the addresses a pool assigns.
func poolChanges() predicate.Predicate {
	return predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, wasPool := e.ObjectOld.(*millracev1beta1.VIPPool)
		now, isPool := e.ObjectNew.(*millracev1beta1.VIPPool)
		return wasPool && isPool && !slices.Equal(before.Status.Usable, now.Status.Usable)
	}})
}

// lookAtPoolsSoon enqueues lookAtPools with a delay that coalesces events of many nodes.
func lookAtPoolsSoon(q queue) { q.AddAfter(lookAtPools, control.Coalesce) }

// namespaceEvents stores the labels of namespaces and requeues affected Services.
func namespaceEvents(waiting *waitingServices) handler.EventHandler {
	note := func(q queue, namespace client.Object) {
		waiting.viewNamespace(namespace.GetName(), namespace.GetLabels())
		q.Add(lookAtPools)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { note(q, e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { note(q, e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) { waiting.forgetNamespace(e.Object.GetName()) },
	}
}
