// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// waitingServices are Services that want an address, or another one, and may
// get it when a VIP, a pool or a namespace changes. They are a line: who has
// waited longer is tried first.
type waitingServices struct {
	mu       sync.Mutex
	services map[types.NamespacedName]*waiter
	// line are the same in their order.
	line   []*waiter
	waking waking
	// changes counts what may help one of them: VIPs that get free, or ports of them.
	changes *atomic.Uint64
	views   views
	// joining are those that join VIPs of others as soon as nobody writes to these.
	joining map[types.NamespacedName]*waiter
	// recall is true where others of them than those that were called may join now.
	recall bool
}

// waiter is a Service that waits.
type waiter struct {
	name types.NamespacedName
	uid  types.UID
	// since is when it began to wait; of those that began at once, created counts.
	since, created time.Time
	// tried and viewed are how many changes there were, of VIPs and of views, when it was tried last, and
	// wish is what it did not get then. isKnown is true once it was tried, isPlanned while it is.
	tried, viewed      uint64
	wish               wish
	isKnown, isPlanned bool
	// owed and concerned are the last changes, of VIPs and of views, that may help it, looked and seen
	// the last ones before a worker looked at it. isWoken is true while it is in the queue for that.
	owed, looked    uint64
	concerned, seen uint64
	isWoken         bool
	// joins are the addresses that it joins, isCalled is true once it is in the queue again for that.
	joins    []netip.Addr
	isCalled bool
}

func newWaitingServices(l *ledger) *waitingServices {
	return &waitingServices{
		services: map[types.NamespacedName]*waiter{}, changes: &l.changes, joining: map[types.NamespacedName]*waiter{},
		waking: waking{freed: map[poolFamily]*freedAddresses{}}, views: views{namespaces: map[string]labels.Set{}},
	}
}

// begin takes note that a Service waits, since a time if it does not already. A Service whose
// condition says so has waited since it does: that outlives an operator.
func (w *waitingServices) begin(service *corev1.Service, since time.Time) {
	condition := meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionAddressAssigned)
	if condition != nil && condition.Status == metav1.ConditionFalse {
		since = condition.LastTransitionTime.Time
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := client.ObjectKeyFromObject(service)
	if known := w.services[key]; known == nil || known.uid != service.UID {
		w.forget(key)
		waiting := &waiter{name: key, uid: service.UID, since: since, created: service.CreationTimestamp.Time}
		w.services[key] = waiting
		at, _ := slices.BinarySearchFunc(w.line, waiting, (*waiter).compare)
		w.line = slices.Insert(w.line, at, waiting)
	}
}

// end takes note that a Service no longer waits.
func (w *waitingServices) end(service types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(service)
}

func (w *waitingServices) forget(service types.NamespacedName) {
	w.leave(service)
	if known := w.services[service]; known != nil {
		at, _ := slices.BinarySearchFunc(w.line, known, (*waiter).compare)
		w.line = slices.Delete(w.line, at, at+1)
		delete(w.services, service)
	}
}

// leave takes a Service out of those that join.
func (w *waitingServices) leave(service types.NamespacedName) {
	if known := w.joining[service]; known != nil {
		known.joins, w.recall = nil, true
		delete(w.joining, service)
	}
}

// join takes note that a Service joins the VIPs that its plan writes to, once nobody else does.
func (w *waitingServices) join(service types.NamespacedName, plan ipam.Plan) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.services[service]; known != nil {
		known.joins, known.isCalled = writtenBy(plan), false
		w.joining[service], w.recall = known, true
	}
}

// stopJoining takes note that a worker has a Service.
func (w *waitingServices) stopJoining(service types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leave(service)
}

// mayJoin takes note that a VIP was written.
func (w *waitingServices) mayJoin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recall = true
}

// joinsBefore reports whether one that has waited longer joins a VIP that a Service's plan writes to.
func (w *waitingServices) joinsBefore(service types.NamespacedName, plan ipam.Plan) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other, waiting := range w.joining {
		if waiting.isJoinedBy(plan) && w.compare(other, service) < 0 {
			return true
		}
	}
	return false
}

// call returns those that are to join now: as many as there are workers, the first in the line, of
// each address that nobody writes to. They are called once.
func (w *waitingServices) call(isPromised func(netip.Addr) bool) (called []types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.recall {
		return nil
	}
	w.recall = false
	lines := map[netip.Addr][]types.NamespacedName{}
	for service, waiting := range w.joining {
		for _, address := range waiting.joins {
			lines[address] = append(lines[address], service)
		}
	}
	for address, line := range lines {
		if isPromised(address) {
			continue
		}
		slices.SortFunc(line, w.compare)
		for _, service := range line[:min(len(line), serviceWorkers)] {
			if waiting := w.joining[service]; !waiting.isCalled {
				waiting.isCalled = true
				called = append(called, service)
			}
		}
	}
	return called
}

// isJoinedBy reports whether a plan writes to a VIP that the Service joins.
func (w *waiter) isJoinedBy(plan ipam.Plan) bool {
	written := writtenBy(plan)
	return slices.ContainsFunc(w.joins, func(address netip.Addr) bool { return slices.Contains(written, address) })
}

// writtenBy are the addresses of the VIPs that a plan writes to.
func writtenBy(plan ipam.Plan) []netip.Addr {
	addresses := make([]netip.Addr, 0, len(plan.Create)+len(plan.Bind))
	for _, writes := range [...][]ipam.Write{plan.Create, plan.Bind} {
		for _, write := range writes {
			addresses = append(addresses, write.Address)
		}
	}
	return addresses
}

// moment is how many changes there were, of VIPs and of views.
type moment struct{ changes, views uint64 }

func (w *waitingServices) present() moment {
	w.mu.Lock()
	defer w.mu.Unlock()
	return moment{w.changes.Load(), w.views.number}
}

// plan takes note that a plan is made for a Service, with all that has changed by now, and views of
// this number.
func (w *waitingServices) plan(service types.NamespacedName, views uint64) moment {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.services[service]; known != nil {
		known.isPlanned = true
	}
	return moment{w.changes.Load(), views}
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
func (w *waitingServices) want(service types.NamespacedName, wish wish) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.services[service]; known != nil {
		known.wish, known.isKnown, known.isPlanned = wish, true, false
	}
}

// ahead returns those that have waited longer than a Service and may want what its plan gives, and
// were not tried since the last change, the first in the line first. Of one that joins a VIP it is
// known that it wants nothing else.
func (w *waitingServices) ahead(service types.NamespacedName, plan ipam.Plan) []types.NamespacedName {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ahead []types.NamespacedName
	for other, waiting := range w.services {
		if len(waiting.joins) > 0 && !waiting.isJoinedBy(plan) {
			continue
		}
		mayWant := waiting.tried == 0 || waiting.viewed < waiting.concerned ||
			waiting.tried < w.changes.Load() && (!waiting.isKnown || plan.Takes(waiting.wish.wants))
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
	return x.compare(y)
}

func (w *waiter) compare(other *waiter) int {
	return cmp.Or(w.since.Compare(other.since), w.created.Compare(other.created), cmp.Compare(w.name.String(), other.name.String()))
}

func rankOf(w *waiter) int {
	if w == nil {
		return 1
	}
	return 0
}

// refused returns those that did not get what they want when they were tried.
func (w *waitingServices) refused() []types.NamespacedName {
	w.mu.Lock()
	defer w.mu.Unlock()
	var refused []types.NamespacedName
	for service, waiting := range w.services {
		if len(waiting.wish.wants) > 0 {
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

// errJoins says that a Service joins a VIP as soon as others have. It is called then.
var errJoins = errors.New("others write to the VIP at the moment")

// callJoining has those come back that can join a VIP now.
func (r *serviceReconciler) callJoining() {
	for _, service := range r.waiting.call(r.ledger.isPromisedAddress) {
		r.later(service, atOnce)
	}
}

// serveAhead tries those that have waited longer than a Service, before that one is given what its
// plan says. It returns the plan that is left for it, made by plan. What it leaves to do for
// others, and failures, are for the queue. Beside other workers it waits for those that they have,
// and returns errAlone where there are more. Where others write to a VIP that it is to join, or are to
// do so first, it returns errJoins: a worker that waited would keep all other Services waiting, too.
func (r *serviceReconciler) serveAhead(
	ctx context.Context, service types.NamespacedName, plan func() ipam.Plan,
) (ipam.Plan, error) {
	planned := plan()
	if r.serving {
		// This one is among them.
		return planned, nil
	}
	for !r.turns.isAlone {
		if len(planned.Create)+len(planned.Bind) == 0 {
			// Nothing that others could want. Thousands that wait are not compared with each other.
			return planned, nil
		}
		ahead := r.waiting.ahead(service, planned)
		switch {
		case r.ledger.isPromised(planned) || r.waiting.joinsBefore(service, planned):
			r.waiting.join(service, planned)
			return planned, errJoins
		case len(ahead) > 0 && !r.turns.areActive(ahead):
			return planned, errAlone
		case len(ahead) > 0:
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
