// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/convert"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// poolReconciler writes all VIPPool statuses in one pass, because their usable addresses interact.
type poolReconciler struct {
	client   client.Client
	live     client.Reader
	recorder events.EventRecorder
	pools    *poolIndex
}

func setupPools(mgr ctrl.Manager) error {
	r := &poolReconciler{client: mgr.GetClient(), live: mgr.GetAPIReader(), recorder: control.NewRecorder(mgr), pools: newPoolIndex()}
	r.pools.hasAdded = true
	at := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	controller := control.New(mgr, "vippool", 1).
		// Services wait for the addresses of a new specification, so these events are not coalesced.
		Watches(&millracev1beta1.VIPPool{}, at, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&millracev1beta1.VIPPool{}, control.CoalescedHandler()).
		Watches(&millracev1beta1.VIP{}, control.CoalescedHandler())
	if err := r.pools.watch(mgr, controller, func(q queue, _ []netip.Addr) { q.AddAfter(reconcile.Request{}, control.Coalesce) }); err != nil {
		return err
	}
	return controller.Complete(r)
}

func (r *poolReconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	list := &millracev1beta1.VIPPoolList{}
	if err := r.client.List(ctx, list); err != nil {
		return ctrl.Result{}, fmt.Errorf("list VIPPools: %w", err)
	}
	vips, err := r.vips(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	stored := make([]*millracev1beta1.VIPPool, 0, len(list.Items))
	for i := range list.Items {
		stored = append(stored, list.Items[i].DeepCopy())
	}
	view, err := r.hold(ctx, list.Items, vips)
	if err != nil {
		return ctrl.Result{}, err
	}
	problems := control.ByObject(view.problems)
	var failed []error
	for i := range list.Items {
		object := &list.Items[i]
		base := stored[i]
		fillPoolStatus(object, view, problems[object.Name], vips)
		err := control.PatchStatus(ctx, r.client, base, object, func(p *millracev1beta1.VIPPool) any { return p.Status })
		if failed = append(failed, client.IgnoreNotFound(err)); err == nil {
			r.emitHeld(base, object)
		}
	}
	return ctrl.Result{}, errors.Join(failed...)
}

func fillPoolStatus(object *millracev1beta1.VIPPool, view poolView, problems []desired.Problem, vips []ipam.VIP) {
	var planned *ipam.Pool
	var limits []desired.Problem
	object.Status.Usable = nil
	if i := slices.IndexFunc(view.usable, func(pool desired.Pool) bool { return pool.Name == object.Name }); i >= 0 {
		planned, limits = &view.planned[i], view.usable[i].Limits
		object.Status.Usable = view.usable[i].UsableRanges()
	}
	usage := ipam.UsageOf(object.Name, planned, vips)
	object.Status.Assigned, object.Status.Free, object.Status.FreeDisplay = &usage.Assigned, &usage.Free, displayed(usage.Free)
	condition := control.Ready(object.Generation, problems, strayMessage(usage.Stray))
	if len(problems) == 0 && len(limits) > 0 {
		condition = limitedCondition(condition, limits)
	}
	meta.SetStatusCondition(&object.Status.Conditions, condition)
}

// displayed returns a number as text, from 2^31 on the nearest power of two.
func displayed(free int64) string {
	if free < 1<<31 {
		return strconv.FormatInt(free, 10)
	}
	return fmt.Sprintf("2^%.0f", math.Log2(float64(free)))
}

func limitedCondition(condition metav1.Condition, limits []desired.Problem) metav1.Condition {
	var messages []string
	for _, limit := range limits {
		messages = append(messages, limit.Message)
	}
	if condition.Message != "" {
		messages = append(messages, condition.Message)
	}
	condition.Reason = limits[0].Reason
	condition.Message = control.Truncate(strings.Join(messages, "; "), control.MaxMessage)
	return condition
}

func (r *poolReconciler) vips(ctx context.Context) ([]ipam.VIP, error) {
	list := &millracev1beta1.VIPList{}
	if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list VIPs: %w", err)
	}
	vips := make([]ipam.VIP, 0, len(list.Items))
	for i := range list.Items {
		if address, ok := addressOf(&list.Items[i]); ok {
			vips = append(vips, convert.VIP(address, &list.Items[i]))
		}
	}
	return vips, nil
}

func strayMessage(stray []netip.Addr) string {
	if len(stray) == 0 {
		return ""
	}
	var names []string
	for _, address := range stray[:min(len(stray), control.MaxNamed)] {
		names = append(names, address.String())
	}
	if len(stray) > control.MaxNamed {
		names = append(names, "...")
	}
	return fmt.Sprintf("%d assigned addresses no longer belong to the pool and are kept until they are released: %s",
		len(stray), strings.Join(names, ", "))
}
