// SPDX-License-Identifier: Apache-2.0

// Package control implements the back-off, events and patches that all controllers of the operator share.
package control

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Bounds of the exponential back-off after failures.
const (
	FirstPause   = 5 * time.Millisecond
	longestPause = 30 * time.Second
)

// FieldOwner is the field manager of the operator's writes.
const FieldOwner = "millrace-operator"

// New returns a builder of a controller that retries failures with back-off.
func New(mgr ctrl.Manager, name string, workers int) *builder.Builder {
	return ctrl.NewControllerManagedBy(mgr).
		Named(name).
		WithOptions(controller.Options{RateLimiter: newRateLimiter(), MaxConcurrentReconciles: workers})
}

func newRateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](FirstPause, longestPause)
}

// Queue is the queue of a controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Coalesce is how long changes of VIPs and pools are gathered before dependent statuses are written.
const Coalesce = 500 * time.Millisecond

// CoalescedHandler returns a handler that coalesces events into one request without a name.
func CoalescedHandler() handler.EventHandler {
	add := func(q Queue) { q.AddAfter(reconcile.Request{}, Coalesce) }
	return handler.Funcs{
		CreateFunc: func(_ context.Context, _ event.CreateEvent, q Queue) { add(q) },
		UpdateFunc: func(_ context.Context, _ event.UpdateEvent, q Queue) { add(q) },
		DeleteFunc: func(_ context.Context, _ event.DeleteEvent, q Queue) { add(q) },
	}
}

// NamespaceMetadata returns an empty Namespace for reading metadata only.
func NamespaceMetadata() *metav1.PartialObjectMetadata {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return namespace
}
