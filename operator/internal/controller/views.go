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

// views are what plans are made from beside the ledger: pools and the labels of namespaces. What changes
// there concerns those of the Services that wait which see it. In a cluster something always changes,
// and thousands that are looked at for nothing would keep others waiting.
type views struct {
	// number counts the changes that concern any.
	number uint64
	// pools are those that the last plan was made from; its number is 0 before the first one.
	pools poolView
	// namespaces are the labels of all, as events have told them.
	namespaces map[string]labels.Set
}

// viewPools takes note of the pools of which plans are made from now on.
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

// changedPools are the pools that are no longer so, and those that were not.
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

// viewNamespace takes note of the labels of a namespace. Most are nothing to any pool.
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

// forgetNamespace takes note that a namespace is gone.
func (w *waitingServices) forgetNamespace(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.views.namespaces, name)
}

// concern has those looked at that a change of views may help, or makes what they were told untrue; w.mu
// is held. One that was not planned for, or is just now, may have seen the change or not.
func (w *waitingServices) concern(may func(*waiter) bool) {
	w.views.number++
	for _, waiting := range w.line {
		if !waiting.isKnown || waiting.isPlanned || waiting.wish.isOpen || may(waiting) {
			waiting.concerned, w.waking.isOwing = w.views.number, true
		}
	}
	w.waking.isDue = true
}

// lookAtPools is what workers are asked for when pools may be others: with no name, it is about all
// Services.
var lookAtPools = reconcile.Request{}

// poolEvents have a worker look at the pools.
func poolEvents() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{lookAtPools}
	})
}

// poolChanges passes events that may change what pools give out.
func poolChanges() predicate.Predicate {
	return predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, wasPool := e.ObjectOld.(*millracev1beta1.VIPPool)
		now, isPool := e.ObjectNew.(*millracev1beta1.VIPPool)
		return wasPool && isPool && !slices.Equal(before.Status.Usable, now.Status.Usable)
	}})
}

// lookAtPoolsSoon has a worker look at the pools, once for all nodes that come in a while.
func lookAtPoolsSoon(q queue) { q.AddAfter(lookAtPools, control.Coalesce) }

// namespaceEvents keep the labels of namespaces, and have a worker wake those whom it concerns.
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
