// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/millrace-lb/millrace/api/canary"
	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
)

// reconciler writes all LBPeers and VIPAdvertisements in one pass, because they refer to each other.
type reconciler struct {
	client client.Client
}

func setupObjects(mgr ctrl.Manager) error {
	return control.New(mgr, "routing", 1).
		Watches(&millracev1beta1.LBPeer{}, control.CoalescedHandler()).
		Watches(&millracev1beta1.VIPAdvertisement{}, control.CoalescedHandler()).
		Watches(&millracev1beta1.VIPPool{}, control.CoalescedHandler(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&millracev1beta1.VIP{}, control.CoalescedHandler(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Service{}, control.CoalescedHandler(), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&corev1.Node{}, control.CoalescedHandler(), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&millracev1beta1.LBNodeReport{}, control.CoalescedHandler(), builder.WithPredicates(canariesChanged())).
		Complete(&reconciler{client: mgr.GetClient()})
}

func (r *reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	pools := &millracev1beta1.VIPPoolList{}
	peers := &millracev1beta1.LBPeerList{}
	advertisements := &millracev1beta1.VIPAdvertisementList{}
	for _, list := range []client.ObjectList{pools, peers, advertisements} {
		if err := r.client.List(ctx, list); err != nil {
			return ctrl.Result{}, fmt.Errorf("list %T: %w", list, err)
		}
	}
	found := desired.Advertisements(advertisements.Items, pools.Items, peers.Items)
	conflicts, err := r.conflicts(ctx, advertisements.Items, peers.Items)
	if err != nil {
		return ctrl.Result{}, err
	}
	verdicts, err := r.verdicts(ctx, peers.Items)
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, errors.Join(
		r.writePeers(ctx, peers.Items, verdicts),
		r.writeAdvertisements(ctx, advertisements.Items, found, conflicts),
	)
}

func (r *reconciler) writePeers(ctx context.Context, peers []millracev1beta1.LBPeer, verdicts []canary.Verdict) error {
	problems := control.ByObject(desired.Peers(peers))
	var failed []error
	for i := range peers {
		peer := &peers[i]
		base := peer.DeepCopy()
		meta.SetStatusCondition(&peer.Status.Conditions, control.Ready(peer.Generation, problems[peer.Name], ""))
		setReached(peer, verdicts)
		err := control.PatchStatus(ctx, r.client, base, peer, func(p *millracev1beta1.LBPeer) any { return p.Status })
		failed = append(failed, client.IgnoreNotFound(err))
	}
	return errors.Join(failed...)
}

func (r *reconciler) writeAdvertisements(
	ctx context.Context,
	advertisements []millracev1beta1.VIPAdvertisement,
	found []desired.Problem,
	conflicts map[string]desired.Conflict,
) error {
	problems := control.ByObject(found)
	var failed []error
	for i := range advertisements {
		object := &advertisements[i]
		base := object.DeepCopy()
		meta.SetStatusCondition(&object.Status.Conditions, control.Ready(object.Generation, problems[object.Name], ""))
		meta.SetStatusCondition(&object.Status.Conditions, conflictingCondition(object.Generation, conflicts, object.Name))
		err := control.PatchStatus(ctx, r.client, base, object, func(a *millracev1beta1.VIPAdvertisement) any { return a.Status })
		failed = append(failed, client.IgnoreNotFound(err))
	}
	return errors.Join(failed...)
}
