// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
)

type queue = control.Queue

// updates returns a handler that calls update with nil for a deleted object.
func updates[T client.Object](update func(q queue, name string, object T)) handler.TypedEventHandler[T, reconcile.Request] {
	return handler.TypedFuncs[T, reconcile.Request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[T], q queue) { update(q, e.Object.GetName(), e.Object) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[T], q queue) {
			update(q, e.ObjectNew.GetName(), e.ObjectNew)
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[T], q queue) {
			var none T
			update(q, e.Object.GetName(), none)
		},
	}
}

// vipEvents updates the VIP cache and enqueues Services with a claim and waiting ones.
type vipEvents struct {
	vips    *vipCache
	waiting *waitingServices
	pools   *poolIndex
}

var _ handler.TypedEventHandler[*millracev1beta1.VIP, reconcile.Request] = vipEvents{}

func (h vipEvents) Create(_ context.Context, e event.TypedCreateEvent[*millracev1beta1.VIP], q queue) {
	if h.vips.put(e.Object) {
		h.enqueueClaims(q, e.Object)
	}
	if isShared(e.Object) {
		h.wake(q, e.Object, e.Object, false)
	}
}

func isShared(vip *millracev1beta1.VIP) bool {
	return slices.ContainsFunc(vip.Spec.Claims, func(claim millracev1beta1.VIPClaim) bool { return claim.SharingKey != "" })
}

func (h vipEvents) Update(_ context.Context, e event.TypedUpdateEvent[*millracev1beta1.VIP], q queue) {
	isAnother := e.ObjectOld.UID != e.ObjectNew.UID
	if isAnother {
		h.vips.remove(e.ObjectOld)
	}
	h.vips.put(e.ObjectNew)
	if equality.Semantic.DeepEqual(e.ObjectOld.Spec.Claims, e.ObjectNew.Spec.Claims) {
		return
	}
	h.enqueueChanged(q, e.ObjectOld.Spec.Claims, e.ObjectNew.Spec.Claims)
	h.wake(q, e.ObjectOld, e.ObjectNew, isAnother)
}

func (h vipEvents) Delete(_ context.Context, e event.TypedDeleteEvent[*millracev1beta1.VIP], q queue) {
	h.vips.remove(e.Object)
	h.enqueueClaims(q, e.Object)
	h.wake(q, e.Object, nil, true)
}

func (h vipEvents) Generic(context.Context, event.TypedGenericEvent[*millracev1beta1.VIP], queue) {}

func (h vipEvents) enqueueClaims(q queue, objects ...*millracev1beta1.VIP) {
	for _, object := range objects {
		for _, claim := range object.Spec.Claims {
			q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}})
		}
	}
}

// enqueueChanged enqueues the Services whose claims changed and, with a delay that coalesces changes, all
// that share the address, which may be hundreds.
func (h vipEvents) enqueueChanged(q queue, before, after []millracev1beta1.VIPClaim) {
	request := func(claim *millracev1beta1.VIPClaim) reconcile.Request {
		return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}}
	}
	known := make(map[reconcile.Request]*millracev1beta1.VIPClaim, len(before))
	for i := range before {
		known[request(&before[i])] = &before[i]
	}
	for i := range after {
		claimant := request(&after[i])
		if previous := known[claimant]; previous != nil && equality.Semantic.DeepEqual(previous, &after[i]) {
			q.AddAfter(claimant, control.Coalesce)
		} else {
			q.Add(claimant)
		}
		delete(known, claimant)
	}
	for claimant := range known {
		q.Add(claimant)
	}
}

func enqueueClaimants(q queue, l *vipCache, addresses []netip.Addr) {
	for _, address := range addresses {
		vip := l.object(address)
		if vip == nil {
			continue
		}
		for _, claim := range vip.Spec.Claims {
			q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}})
		}
	}
}
