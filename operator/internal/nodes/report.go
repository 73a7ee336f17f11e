// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
)

// reportReconciler maintains one LBNodeReport per LBNode and the conditions of nodes that are not ready.
type reportReconciler struct {
	client client.Client
	// live reads whole reports: the cache holds only parts of them.
	live client.Reader
}

func setupReports(mgr ctrl.Manager) error {
	r := &reportReconciler{client: mgr.GetClient(), live: mgr.GetAPIReader()}
	return control.New(mgr, "lbnodereport", workers).
		Watches(&millracev1beta1.LBNode{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(replaced())).
		Watches(&millracev1beta1.LBNodeReport{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(reportChanged())).
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(readinessChanged())).
		Complete(r)
}

func replaced() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetUID() != e.ObjectNew.GetUID()
	}}
}

func reportChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*millracev1beta1.LBNodeReport)
		after, ok2 := e.ObjectNew.(*millracev1beta1.LBNodeReport)
		return ok1 && ok2 && (before.UID != after.UID ||
			!equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences) ||
			!sameReadiness(ReadyCondition(before.Status.Conditions), ReadyCondition(after.Status.Conditions)))
	}}
}

// readinessChanged drops heartbeats.
func readinessChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*corev1.Node)
		after, ok2 := e.ObjectNew.(*corev1.Node)
		return ok1 && ok2 && !sameReadiness(NotReady(before), NotReady(after))
	}}
}

// NotReady returns the condition NodeReady, with the Node's transition time, of a node that is not ready.
func NotReady(node *corev1.Node) *metav1.Condition {
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady || condition.Status == corev1.ConditionTrue {
			continue
		}
		since := condition.LastTransitionTime
		if since.IsZero() {
			since = node.CreationTimestamp
		}
		return &metav1.Condition{
			Type:               millracev1beta1.ConditionNodeReady,
			Status:             metav1.ConditionStatus(condition.Status),
			Reason:             millracev1beta1.ReasonNodeNotReady,
			Message:            fmt.Sprintf("condition Ready of Node %s is %s", node.Name, condition.Status),
			LastTransitionTime: since,
		}
	}
	return nil
}

// ReadyCondition returns the condition NodeReady of a report, or nil.
func ReadyCondition(conditions []metav1.Condition) *metav1.Condition {
	return meta.FindStatusCondition(conditions, millracev1beta1.ConditionNodeReady)
}

func sameReadiness(a, b *metav1.Condition) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Status == b.Status && a.LastTransitionTime.Equal(&b.LastTransitionTime)
}

// Reconcile creates or updates the report, which the garbage collector deletes after the LBNode.
func (r *reportReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	lbNode := &millracev1beta1.LBNode{}
	if err := r.client.Get(ctx, request.NamespacedName, lbNode); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	owners := []metav1.OwnerReference{{
		APIVersion: millracev1beta1.GroupVersion.String(), Kind: "LBNode", Name: lbNode.Name, UID: lbNode.UID,
	}}
	report := &millracev1beta1.LBNodeReport{}
	err := r.client.Get(ctx, request.NamespacedName, report)
	if apierrors.IsNotFound(err) {
		return ctrl.Result{}, r.create(ctx, lbNode.Name, owners)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if !equality.Semantic.DeepEqual(report.OwnerReferences, owners) {
		return ctrl.Result{}, r.setOwners(ctx, report, owners)
	}
	node := &corev1.Node{}
	if err := r.client.Get(ctx, request.NamespacedName, node); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	want := NotReady(node)
	if sameReadiness(ReadyCondition(report.Status.Conditions), want) {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, r.updateConditions(ctx, report, want)
}

func (r *reportReconciler) create(ctx context.Context, name string, owners []metav1.OwnerReference) error {
	report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}
	if err := r.client.Create(ctx, report); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create LBNodeReport %s: %w", name, err)
	}
	return nil
}

func (r *reportReconciler) setOwners(
	ctx context.Context, report *millracev1beta1.LBNodeReport, owners []metav1.OwnerReference,
) error {
	base := report.DeepCopy()
	report.OwnerReferences = owners
	if err := r.client.Patch(ctx, report, control.SameObject{Patch: client.MergeFrom(base), UID: base.UID}); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("update LBNodeReport %s: %w", report.Name, err))
	}
	return nil
}

// updateConditions sets NodeReady to False and Ready to Unknown, or resets them if notReady is nil. It
// writes only when the Node changes, so that it does not alternate with an agent that still runs.
func (r *reportReconciler) updateConditions(
	ctx context.Context, cached *millracev1beta1.LBNodeReport, notReady *metav1.Condition,
) error {
	report := &millracev1beta1.LBNodeReport{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(cached), report); err != nil {
		return client.IgnoreNotFound(err)
	}
	base := report.DeepCopy()
	if notReady == nil {
		meta.RemoveStatusCondition(&report.Status.Conditions, millracev1beta1.ConditionNodeReady)
	} else if !sameReadiness(ReadyCondition(report.Status.Conditions), notReady) {
		setNotReady(report, *notReady)
	}
	if equality.Semantic.DeepEqual(base.Status, report.Status) {
		return nil
	}
	// The patch replaces all conditions, so the report must be current.
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := r.client.Status().Patch(ctx, report, patch); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of LBNodeReport %s: %w", report.Name, err))
	}
	return nil
}

// setNotReady copies the Node's transition time, which distinguishes this transition from later ones.
func setNotReady(report *millracev1beta1.LBNodeReport, notReady metav1.Condition) {
	notReady.ObservedGeneration = report.Generation
	meta.RemoveStatusCondition(&report.Status.Conditions, millracev1beta1.ConditionNodeReady)
	meta.SetStatusCondition(&report.Status.Conditions, notReady)
	meta.SetStatusCondition(&report.Status.Conditions, metav1.Condition{
		Type:               millracev1beta1.ConditionReady,
		Status:             metav1.ConditionUnknown,
		Reason:             notReady.Reason,
		Message:            notReady.Message + "; conditions that the agent reported before may be outdated",
		ObservedGeneration: report.Generation,
	})
}
