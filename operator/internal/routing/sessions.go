// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
)

// sessionPause bounds events and writes about flapping sessions of one node.
const sessionPause = 5 * time.Minute

// sessionReconciler emits events when sessions of a node go down and are all established again, because
// agents may not write events.
type sessionReconciler struct {
	client   client.Client
	recorder events.EventRecorder
	now      func() time.Time
	// reported holds the last event of each node. Only one worker uses it.
	reported map[string]reportedSessions
}

type reportedSessions struct {
	uid    types.UID
	status metav1.ConditionStatus
	// at is zero before the first event.
	at time.Time
}

func setupSessions(mgr ctrl.Manager) error {
	r := &sessionReconciler{client: mgr.GetClient(), recorder: control.NewRecorder(mgr), now: time.Now, reported: map[string]reportedSessions{}}
	return control.New(mgr, "session", 1).
		Watches(&millracev1beta1.LBNodeReport{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(sessionsChanged())).
		Complete(r)
}

func sessionsChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*millracev1beta1.LBNodeReport)
		after, ok2 := e.ObjectNew.(*millracev1beta1.LBNodeReport)
		return ok1 && ok2 && (before.UID != after.UID || statusOfSessions(before) != statusOfSessions(after))
	}}
}

func statusOfSessions(report *millracev1beta1.LBNodeReport) metav1.ConditionStatus {
	if condition := established(report.Status.Conditions); condition != nil {
		return condition.Status
	}
	return ""
}

func established(conditions []metav1.Condition) *metav1.Condition {
	return meta.FindStatusCondition(conditions, millracev1beta1.ConditionBGPEstablished)
}

// Reconcile emits an event if the state of a node's sessions has changed, but not for the first state.
func (r *sessionReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	report := &millracev1beta1.LBNodeReport{}
	if err := r.client.Get(ctx, request.NamespacedName, report); err != nil {
		delete(r.reported, request.Name)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	condition := established(report.Status.Conditions)
	if condition == nil {
		return ctrl.Result{}, nil
	}
	last, known := r.reported[report.Name]
	if !known || last.uid != report.UID {
		r.reported[report.Name] = reportedSessions{uid: report.UID, status: condition.Status}
		return ctrl.Result{}, nil
	}
	if last.status == condition.Status {
		return ctrl.Result{}, nil
	}
	now := r.now()
	if wait := last.at.Add(sessionPause).Sub(now); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	severity, note := corev1.EventTypeNormal, "all BGP sessions are established"
	if condition.Status != metav1.ConditionTrue {
		severity, note = corev1.EventTypeWarning, "BGP sessions are not established: "+condition.Message
	}
	r.recorder.Eventf(report, nil, severity, condition.Reason, "Peer", "%s", note)
	r.reported[report.Name] = reportedSessions{uid: report.UID, status: condition.Status, at: now}
	return ctrl.Result{}, nil
}
