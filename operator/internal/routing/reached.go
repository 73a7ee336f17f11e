// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/millrace-lb/millrace/api/canary"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func canariesChanged() predicate.Predicate {
	has := func(object client.Object) bool {
		report, ok := object.(*millracev1beta1.LBNodeReport)
		return ok && slices.ContainsFunc(report.Status.Sessions, func(s millracev1beta1.SessionStatus) bool { return len(s.Canaries) > 0 })
	}
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return has(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { return has(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok1 := e.ObjectOld.(*millracev1beta1.LBNodeReport)
			after, ok2 := e.ObjectNew.(*millracev1beta1.LBNodeReport)
			if !ok1 || !ok2 || !has(before) && !has(after) {
				return false
			}
			notReady := func(report *millracev1beta1.LBNodeReport) bool {
				return meta.FindStatusCondition(report.Status.Conditions, millracev1beta1.ConditionNodeReady) != nil
			}
			return notReady(before) != notReady(after) || !equality.Semantic.DeepEqual(before.Status.Sessions, after.Status.Sessions)
		},
	}
}

// verdicts reads nothing if there are no canaries.
func (r *reconciler) verdicts(ctx context.Context, peers []millracev1beta1.LBPeer) ([]canary.Verdict, error) {
	if !slices.ContainsFunc(peers, func(peer millracev1beta1.LBPeer) bool { return len(peer.Spec.Canaries) > 0 }) {
		return nil, nil
	}
	reports, nodes := &millracev1beta1.LBNodeReportList{}, &millracev1beta1.LBNodeList{}
	for _, list := range []client.ObjectList{reports, nodes} {
		if err := r.client.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	return canary.Judge(reports.Items, canary.IDs(nodes.Items)), nil
}

// setReached reports the fault of the first router.
func setReached(peer *millracev1beta1.LBPeer, verdicts []canary.Verdict) {
	if len(peer.Spec.Canaries) == 0 {
		meta.RemoveStatusCondition(&peer.Status.Conditions, millracev1beta1.ConditionPathsVerified)
		return
	}
	condition := metav1.Condition{
		Type: millracev1beta1.ConditionPathsVerified, ObservedGeneration: peer.Generation,
		Status: metav1.ConditionUnknown, Reason: millracev1beta1.ReasonPending,
		Message: "no node with a session has probed through the router for long enough",
	}
	for i := range verdicts {
		verdict := &verdicts[i]
		switch {
		case verdict.Peer != peer.Name:
		case !verdict.Known():
			if condition.Status == metav1.ConditionUnknown {
				condition.Reason, condition.Message = verdict.Reason, describe(verdict)
			}
		case !verdict.OK():
			condition.Status, condition.Reason = metav1.ConditionFalse, verdict.Reason
			condition.Message = describe(verdict)
		case condition.Status == metav1.ConditionUnknown:
			condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, verdict.Reason, ""
		}
		if condition.Status == metav1.ConditionFalse {
			break
		}
	}
	meta.SetStatusCondition(&peer.Status.Conditions, condition)
}

func describe(verdict *canary.Verdict) string {
	return fmt.Sprintf("router %s, canary %s: %s", verdict.Address, verdict.Canary, verdict.Message)
}
