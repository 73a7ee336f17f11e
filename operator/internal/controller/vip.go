// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/convert"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

const indexPool = "spec.pool"

type vipReconciler struct {
	client     client.Client
	pools      *poolIndex
	duplicates *duplicateTracker
	answers    *answerTracker

	announcements *announcements
}

func setupVIPs(ctx context.Context, mgr ctrl.Manager, announcements *announcements) error {
	byPool := func(object client.Object) []string { return []string{object.(*millracev1beta1.VIP).Spec.Pool} }
	if err := mgr.GetFieldIndexer().IndexField(ctx, &millracev1beta1.VIP{}, indexPool, byPool); err != nil {
		return fmt.Errorf("index VIPs by pool: %w", err)
	}
	r := &vipReconciler{
		client: mgr.GetClient(), pools: newPoolIndex(), duplicates: newDuplicateTracker(enqueueVIPs), answers: newAnswerTracker(enqueueVIPs),
		announcements: announcements,
	}
	controller := control.New(mgr, "vip", 1).
		For(&millracev1beta1.VIP{}).
		WatchesRawSource(announcements.source()).
		WatchesRawSource(source.Kind(mgr.GetCache(), &millracev1beta1.VIP{}, updates(announcements.forget))).
		WatchesRawSource(source.Kind(mgr.GetCache(), &millracev1beta1.LBNodeReport{}, updates(r.duplicates.update))).
		WatchesRawSource(source.Kind(mgr.GetCache(), &millracev1beta1.LBNodeReport{}, updates(r.answers.update))).
		Watches(&millracev1beta1.VIPPool{}, handler.EnqueueRequestsFromMapFunc(r.vipsOf),
			builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	if err := r.pools.watch(mgr, controller, enqueueVIPs); err != nil {
		return err
	}
	return controller.Complete(r)
}

// enqueueVIPs also accepts addresses without a VIP.
func enqueueVIPs(q queue, addresses []netip.Addr) {
	for _, address := range addresses {
		q.Add(ctrl.Request{NamespacedName: types.NamespacedName{Name: millracev1beta1.VIPName(address)}})
	}
}

func (r *vipReconciler) vipsOf(ctx context.Context, pool client.Object) []ctrl.Request {
	list := &millracev1beta1.VIPList{}
	if err := r.client.List(ctx, list, client.MatchingFields{indexPool: pool.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		// Listing from the cache fails only when the manager stops.
		return nil
	}
	requests := make([]ctrl.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, ctrl.Request{NamespacedName: types.NamespacedName{Name: list.Items[i].Name}})
	}
	return requests
}

func (r *vipReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	vip := &millracev1beta1.VIP{}
	if err := r.client.Get(ctx, request.NamespacedName, vip); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	condition, err := r.condition(ctx, vip)
	if err != nil {
		return ctrl.Result{}, err
	}
	base := vip.DeepCopy()
	vip.Status.Phase = phaseOf(vip)
	vip.Status.Services = claimants(vip.Spec.Claims)
	meta.SetStatusCondition(&vip.Status.Conditions, condition)
	if address, usable := addressOf(vip); usable {
		setUnique(&vip.Status.Conditions, vip.Generation, r.duplicates.of(address))
		vip.Status.L2Node = r.answers.of(address)
	}
	r.announcements.setAnnounced(vip)
	if equality.Semantic.DeepEqual(base.Status, millracev1beta1.VIPStatus{}) && isPlainVIP(vip) {
		return ctrl.Result{}, nil
	}
	err = control.PatchStatus(ctx, r.client, base, vip, func(v *millracev1beta1.VIP) any { return v.Status })
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// isPlainVIP reports whether the status adds nothing to the spec: one Service has the VIP, no node answers
// for it, and no condition has a message. It is written only to replace another status.
func isPlainVIP(vip *millracev1beta1.VIP) bool {
	return len(vip.Spec.Claims) == 1 && isBound(vip) && vip.Status.L2Node == "" &&
		!slices.ContainsFunc(vip.Status.Conditions, func(condition metav1.Condition) bool {
			return condition.Status != metav1.ConditionTrue || condition.Message != ""
		})
}

func phaseOf(vip *millracev1beta1.VIP) millracev1beta1.VIPPhase {
	switch _, usable := addressOf(vip); {
	case !usable || !isBound(vip):
		return millracev1beta1.VIPReserved
	case isReleasing(vip):
		return millracev1beta1.VIPReleasing
	}
	return millracev1beta1.VIPBound
}

// isBound reports whether a Service has the VIP; claims without a UID are reservations.
func isBound(vip *millracev1beta1.VIP) bool {
	return slices.ContainsFunc(vip.Spec.Claims, func(claim millracev1beta1.VIPClaim) bool { return claim.UID != "" })
}

func isReleasing(vip *millracev1beta1.VIP) bool {
	return !slices.ContainsFunc(vip.Spec.Claims, func(claim millracev1beta1.VIPClaim) bool {
		return claim.UID != "" && claim.Release == nil
	})
}

func claimants(claims []millracev1beta1.VIPClaim) string {
	var names []string
	for _, claim := range claims[:min(len(claims), control.MaxNamed)] {
		names = append(names, claim.Namespace+"/"+claim.Name)
	}
	if more := len(claims) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

func (r *vipReconciler) condition(ctx context.Context, vip *millracev1beta1.VIP) (metav1.Condition, error) {
	address, problems := desired.ParseVIP(vip)
	if len(problems) > 0 {
		return control.Ready(vip.Generation, problems, ""), nil
	}
	host, younger := r.pools.host(address, vip)
	if host != "" {
		return control.Ready(vip.Generation, []desired.Problem{{
			Reason: millracev1beta1.ReasonOccupied, Message: desired.OccupiedVIP(address, host),
		}}, ""), nil
	}
	if problems := duplicatePorts(vip); len(problems) > 0 {
		return control.Ready(vip.Generation, problems, ""), nil
	}
	if younger != "" {
		return control.Ready(vip.Generation, nil, desired.NewerHostMessage(address, younger)), nil
	}
	if vip.Spec.Pool == "" {
		return control.Ready(vip.Generation, nil, ""), nil
	}
	pool := &millracev1beta1.VIPPool{}
	err := r.client.Get(ctx, types.NamespacedName{Name: vip.Spec.Pool}, pool)
	if client.IgnoreNotFound(err) != nil {
		return metav1.Condition{}, fmt.Errorf("read VIPPool %s: %w", vip.Spec.Pool, err)
	}
	note := ""
	if err != nil {
		note = fmt.Sprintf("VIPPool %q no longer exists; the address is kept until it is released", vip.Spec.Pool)
	} else if !desired.PoolHas(pool, address) {
		note = fmt.Sprintf("the address no longer belongs to VIPPool %q; it is kept until it is released", vip.Spec.Pool)
	}
	return control.Ready(vip.Generation, nil, note), nil
}

// duplicatePorts reports ports of two claims, which must be manual; the first one has the port.
func duplicatePorts(vip *millracev1beta1.VIP) []desired.Problem {
	var problems []desired.Problem
	owners := map[ipam.Port]millracev1beta1.VIPClaim{}
	for i, claim := range vip.Spec.Claims {
		for _, port := range convert.ClaimedPorts(claim) {
			owner, taken := owners[port]
			if !taken {
				owners[port] = claim
				continue
			}
			if owner.Namespace == claim.Namespace && owner.Name == claim.Name {
				continue
			}
			problems = append(problems, desired.Problem{
				Reason: millracev1beta1.ReasonPortConflict,
				Message: fmt.Sprintf("spec.claims[%d].ports: %s belongs to the claim of Service %s/%s",
					i, port, owner.Namespace, owner.Name),
			})
		}
	}
	return problems
}
