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

// waitingServices orders, by waiting time, the Services that may get an address after a change.
type waitingServices struct {
	mu       sync.Mutex
	services map[types.NamespacedName]*waiter
	line     []*waiter
	waking   waking
	// changes counts changes of VIPs that may help a waiting Service.
	changes *atomic.Uint64
	views   views
	// joining holds the Services that add a claim to a VIP once no other plan is being written to it.
	joining map[types.NamespacedName]*waiter
	// recall is true if further joining Services may be called.
	recall bool
}

type waiter struct {
	name types.NamespacedName
	uid  types.UID
	// since is when the Service began to wait; created breaks ties.
	since, created time.Time
	// tried and viewed are the last changes of VIPs and views before the last plan, and wish is the part
	// that the plan refused. isKnown is true after the first plan, isPlanned during one.
	tried, viewed      uint64
	wish               wish
	isKnown, isPlanned bool
	// owed and concerned are the last changes of VIPs and views that may help; looked and seen, those
	// before a worker reconciled the Service. isWoken is true while it is queued for that.
	owed, looked    uint64
	concerned, seen uint64
	isWoken         bool
	// joins are the addresses to share; isCalled is true once the Service was requeued for that.
	joins    []netip.Addr
	isCalled bool
}

func newWaitingServices(l *ledger) *waitingServices {
	return &waitingServices{
		services: map[types.NamespacedName]*waiter{}, changes: &l.changes, joining: map[types.NamespacedName]*waiter{},
		waking: waking{freed: map[poolFamily]*freedAddresses{}}, views: views{namespaces: map[string]labels.Set{}},
	}
}

// begin adds a Service that has waited since a time or since the transition of its condition
// AddressAssigned, which survives restarts of the operator.
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

func (w *waitingServices) leave(service types.NamespacedName) {
	if known := w.joining[service]; known != nil {
		known.joins, w.recall = nil, true
		delete(w.joining, service)
	}
}

// join records that a Service waits for pending writes to the VIPs of its plan.
func (w *waitingServices) join(service types.NamespacedName, plan ipam.Plan) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.services[service]; known != nil {
		known.joins, known.isCalled = writtenBy(plan), false
		w.joining[service], w.recall = known, true
	}
}

func (w *waitingServices) stopJoining(service types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leave(service)
}

func (w *waitingServices) mayJoin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recall = true
}

// joinsBefore reports whether a Service that has waited longer joins a VIP of the plan.
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

// call returns the Services that can join now: for each address without a pending write the first ones in
// the line, at most as many as there are workers.
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

func (w *waiter) isJoinedBy(plan ipam.Plan) bool {
	written := writtenBy(plan)
	return slices.ContainsFunc(w.joins, func(address netip.Addr) bool { return slices.Contains(written, address) })
}

func writtenBy(plan ipam.Plan) []netip.Addr {
	addresses := make([]netip.Addr, 0, len(plan.Create)+len(plan.Bind))
	for _, writes := range [...][]ipam.Write{plan.Create, plan.Bind} {
		for _, write := range writes {
			addresses = append(addresses, write.Address)
		}
	}
	return addresses
}

// A moment identifies a state by its numbers of changes of VIPs and views.
type moment struct{ changes, views uint64 }

func (w *waitingServices) present() moment {
	w.mu.Lock()
	defer w.mu.Unlock()
	return moment{w.changes.Load(), w.views.number}
}

// plan records that a plan is being made, from the current VIPs and views with this number.
func (w *waitingServices) plan(service types.NamespacedName, views uint64) moment {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.services[service]; known != nil {
		known.isPlanned = true
	}
	return moment{w.changes.Load(), views}
}

func (w *waitingServices) try(service types.NamespacedName, with moment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.services[service]; known != nil {
		known.tried, known.viewed = with.changes, with.views
	}
}

func (w *waitingServices) want(service types.NamespacedName, wish wish) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.services[service]; known != nil {
		known.wish, known.isKnown, known.isPlanned = wish, true, false
	}
}

// ahead returns, in order, Services that have waited longer, may want an address of the plan and were not
// tried since the last change. Joining Services want no other address.
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

func (w *waitingServices) compare(a, b types.NamespacedName) int {
	x, y := w.services[a], w.services[b]
	if x == nil || y == nil {
		// Services that do not wait come last.
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

// noteWaiting adds a new Service until its first pass. Those of the initial list are ordered by age.
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

// errJoins is returned if a Service has to wait, and be requeued, until other plans are written.
var errJoins = errors.New("other plans for the VIP are being written")

func (r *serviceReconciler) callJoining() {
	for _, service := range r.waiting.call(r.ledger.isPromisedAddress) {
		r.later(service, atOnce)
	}
}

// serveAhead lets Services that have waited longer be planned first, and returns the resulting plan. It
// returns errAlone if this needs other workers to pause, and errJoins if another plan must first be written
// to one of its VIPs, because a waiting worker would delay all other Services.
func (r *serviceReconciler) serveAhead(
	ctx context.Context, service types.NamespacedName, plan func() ipam.Plan,
) (ipam.Plan, error) {
	planned := plan()
	if r.serving {
		// This Service is one of those being served.
		return planned, nil
	}
	for !r.turns.isAlone {
		if len(planned.Create)+len(planned.Bind) == 0 {
			// The plan takes nothing from others; comparing thousands of Services would be expensive.
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
			// The plan no longer takes anything from others.
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
