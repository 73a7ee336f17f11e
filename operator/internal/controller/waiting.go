// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// waitingServices are Services that want an address, or another one, and may
// get it when a VIP, a pool or a namespace changes. They are a line: who has
// waited longer is tried first.
type waitingServices struct {
	mu       sync.Mutex
	services map[types.NamespacedName]*waiter
	// changes counts what may help one of them: VIPs that get free, or ports of them. views counts
	// changes of pools and namespaces, after which each of them may want something else.
	changes *atomic.Uint64
	views   uint64
}

// waiter is a Service that waits.
type waiter struct {
	uid types.UID
	// since is when it began to wait; of those that began at once, created counts.
	since, created time.Time
	// tried and viewed are how many changes and views there were when it was tried last, and wants is
	// what it did not get then. isKnown is true once it was tried.
	tried, viewed uint64
	wants         []ipam.Want
	isKnown       bool
}

func newWaitingServices(l *ledger) *waitingServices {
	return &waitingServices{services: map[types.NamespacedName]*waiter{}, changes: &l.changes}
}

// begin takes note that a Service waits, since a time if it does not already. A Service whose
// condition says so has waited since it does: that outlives an operator.
func (w *waitingServices) begin(service *corev1.Service, since time.Time) {
	condition := meta.FindStatusCondition(service.Status.Conditions, millracev1alpha1.ConditionAddressAssigned)
	if condition != nil && condition.Status == metav1.ConditionFalse {
		since = condition.LastTransitionTime.Time
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := client.ObjectKeyFromObject(service)
	if known := w.services[key]; known == nil || known.uid != service.UID {
		w.services[key] = &waiter{uid: service.UID, since: since, created: service.CreationTimestamp.Time}
	}
}

// end takes note that a Service no longer waits.
func (w *waitingServices) end(service types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.services, service)
}

// moment is how many changes and views there were.
type moment struct{ changes, views uint64 }

func (w *waitingServices) present() moment {
	w.mu.Lock()
	defer w.mu.Unlock()
	return moment{w.changes.Load(), w.views}
}

// try takes note that a Service is tried with all that had changed by a moment.
func (w *waitingServices) try(service types.NamespacedName, with moment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.services[service]; known != nil {
		known.tried, known.viewed = with.changes, with.views
	}
}

// want takes note of what a Service did not get when it was tried.
func (w *waitingServices) want(service types.NamespacedName, wants []ipam.Want) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.services[service]; known != nil {
		known.wants, known.isKnown = wants, true
	}
}

// view takes note that pools or namespaces have changed.
func (w *waitingServices) view() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.views++
}

// ahead returns those that have waited longer than a Service and may want what its plan gives, and
// were not tried since the last change, the first in the line first.
func (w *waitingServices) ahead(service types.NamespacedName, plan ipam.Plan) []types.NamespacedName {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ahead []types.NamespacedName
	for other, waiting := range w.services {
		mayWant := waiting.tried == 0 || waiting.viewed < w.views ||
			waiting.tried < w.changes.Load() && (!waiting.isKnown || plan.Takes(waiting.wants))
		if mayWant && w.compare(other, service) < 0 {
			ahead = append(ahead, other)
		}
	}
	slices.SortFunc(ahead, w.compare)
	return ahead
}

// compare orders Services that wait by how long they do.
func (w *waitingServices) compare(a, b types.NamespacedName) int {
	x, y := w.services[a], w.services[b]
	if x == nil || y == nil {
		// Who does not wait is behind all others.
		return cmp.Or(cmp.Compare(rankOf(x), rankOf(y)), cmp.Compare(a.String(), b.String()))
	}
	return cmp.Or(x.since.Compare(y.since), x.created.Compare(y.created), cmp.Compare(a.String(), b.String()))
}

func rankOf(w *waiter) int {
	if w == nil {
		return 1
	}
	return 0
}

// requests returns the waiting Services of a namespace, of all with "".
func (w *waitingServices) requests(namespace string) []reconcile.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	var requests []reconcile.Request
	for service := range w.services {
		if namespace == "" || service.Namespace == namespace {
			requests = append(requests, reconcile.Request{NamespacedName: service})
		}
	}
	return requests
}

// refused returns those that did not get what they want when they were tried.
func (w *waitingServices) refused() []types.NamespacedName {
	w.mu.Lock()
	defer w.mu.Unlock()
	var refused []types.NamespacedName
	for service, waiting := range w.services {
		if len(waiting.wants) > 0 {
			refused = append(refused, service)
		}
	}
	return refused
}

// noteWaiting takes note of a Service that is new to the operator: until it is looked at, it waits.
// Of those that were there at its start the older ones go first.
func (r *serviceReconciler) noteWaiting(service *corev1.Service, atStart bool) {
	if !r.serves(service) {
		return
	}
	since := r.now()
	if atStart {
		since = service.CreationTimestamp.Time
	}
	r.waiting.begin(service, since)
}

// serveAhead tries those that have waited longer than a Service, before that one is given what its
// plan says. It returns the plan that is left for it, made by plan. What it leaves to do for
// others, and failures, are for the queue. Beside other workers it waits for those that they have,
// and returns errAlone where there are more.
func (r *serviceReconciler) serveAhead(
	ctx context.Context, service types.NamespacedName, plan func() ipam.Plan,
) (ipam.Plan, error) {
	planned := plan()
	if r.serving {
		// This one is among them.
		return planned, nil
	}
	for !r.turns.isAlone {
		ahead := r.waiting.ahead(service, planned)
		gives := len(planned.Create)+len(planned.Bind) > 0
		switch {
		case gives && len(ahead) > 0 && !r.turns.areActive(ahead):
			return planned, errAlone
		case gives && len(ahead) > 0 || r.ledger.isPromised(planned):
			r.turns.wait()
			planned = plan()
		default:
			return planned, nil
		}
	}
	r.serving = true
	defer func() { r.serving = false }()
	for _, other := range r.waiting.ahead(service, planned) {
		if len(planned.Create)+len(planned.Bind) == 0 {
			// Nothing is left that others could be kept from.
			break
		}
		r.waiting.try(other, r.waiting.present())
		again, err := r.reconcile(ctx, reconcile.Request{NamespacedName: other})
		if err != nil || again > 0 {
			r.later(other, again)
		}
		planned = plan()
	}
	return planned, nil
}
