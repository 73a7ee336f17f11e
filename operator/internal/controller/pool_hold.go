// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"net/netip"
	"slices"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

const actionHold = "HoldPool"

// hold sets condition OverlapsEndpoints of pools that add addresses of endpoints, because agents would
// reject these endpoints and withdraw VIPs, and returns the resulting view of all pools.
func (r *poolReconciler) hold(ctx context.Context, objects []millracev1beta1.VIPPool, vips []ipam.VIP) (poolView, error) {
	view := r.pools.pools(objects)
	var all netipx.IPSetBuilder
	added := make(map[string]*netipx.IPSet, len(view.usable))
	for i := range view.usable {
		pool := &view.usable[i]
		at := slices.IndexFunc(objects, func(object millracev1beta1.VIPPool) bool { return object.Name == pool.Name })
		added[pool.Name] = pool.Added(&objects[at])
		all.AddSet(added[pool.Name])
	}
	within, err := all.IPSet()
	if err != nil {
		return poolView{}, err
	}
	var endpoints []desired.Endpoint
	if len(within.Ranges()) > 0 {
		if endpoints, err = control.EndpointsWithin(ctx, r.live, within); err != nil {
			return poolView{}, err
		}
	}
	for i := range objects {
		holdPool(&objects[i], added[objects[i].Name], endpoints, vips)
	}
	return r.pools.pools(objects), nil
}

// holdPool sets or removes condition OverlapsEndpoints. Endpoints with a VIP's address are not pods.
func holdPool(object *millracev1beta1.VIPPool, added *netipx.IPSet, endpoints []desired.Endpoint, vips []ipam.VIP) {
	if desired.IsHeld(object) {
		return
	}
	isVIP := func(address netip.Addr) bool {
		return slices.ContainsFunc(vips, func(vip ipam.VIP) bool { return vip.Address == address })
	}
	message := ""
	if added != nil {
		message = desired.OverlapMessage(slices.DeleteFunc(slices.Clone(endpoints), func(endpoint desired.Endpoint) bool {
			return !added.Contains(endpoint.Address) || isVIP(endpoint.Address)
		}))
	}
	if message == "" {
		meta.RemoveStatusCondition(&object.Status.Conditions, millracev1beta1.ConditionOverlapsEndpoints)
		return
	}
	meta.SetStatusCondition(&object.Status.Conditions, metav1.Condition{
		Type: millracev1beta1.ConditionOverlapsEndpoints, Status: metav1.ConditionTrue,
		Reason: millracev1beta1.ReasonOverlapsEndpoints, Message: message, ObservedGeneration: object.Generation,
	})
}

func (r *poolReconciler) emitHeld(before, now *millracev1beta1.VIPPool) {
	held := meta.FindStatusCondition(now.Status.Conditions, millracev1beta1.ConditionOverlapsEndpoints)
	known := meta.FindStatusCondition(before.Status.Conditions, millracev1beta1.ConditionOverlapsEndpoints)
	if held == nil || known != nil && known.Message == held.Message {
		return
	}
	r.recorder.Eventf(now, nil, corev1.EventTypeWarning, held.Reason, actionHold, "%s", held.Message)
}
