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
	queue    []*waiter
	requeuer requeuer
	// changes counts changes of VIPs that may help a waiting Service.
	changes *atomic.Uint64
	views   views
	// joining holds the Services that add a claim to a VIP once no other plan is being written to it.
	joining map[types.NamespacedName]*waiter
	// hasMoreJoining is true if further joining Services may be requeued.
	hasMoreJoining bool
}

type waiter struct {
	name types.NamespacedName
	uid  types.UID
	// since is when the Service began to wait; created breaks ties.
	since, created time.Time
	// plannedChange and plannedView are the last changes of VIPs and views before the last plan, and
	// unmet is the part that the plan refused. isKnown is true after the first plan, isPlanned during
	// one.
	plannedChange, plannedView uint64
	unmet                      unmetRequest
	isKnown, isPlanned         bool
	// affectingChange and affectingView are the last changes of VIPs and views that may help;
	// reconciledChange and reconciledView, those before a worker reconciled the Service. isRequeued is
	// true while it is queued for that.
	affectingChange, reconciledChange uint64
	affectingView, reconciledView     uint64
	isRequeued                        bool
	// joinAddresses are the addresses to share; isJoinQueued is true once the Service was requeued for that.
	joinAddresses []netip.Addr
	isJoinQueued  bool
}

func newWaitingServices(l *vipCache) *waitingServices {
	return &waitingServices{
		services: map[types.NamespacedName]*waiter{}, changes: &l.changes, joining: map[types.NamespacedName]*waiter{},
		requeuer: requeuer{freed: map[poolFamily]*freedAddresses{}}, views: views{namespaces: map[string]labels.Set{}},
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
		at, _ := slices.BinarySearchFunc(w.queue, waiting, (*waiter).compare)
		w.queue = slices.Insert(w.queue, at, waiting)
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
		at, _ := slices.BinarySearchFunc(w.queue, known, (*waiter).compare)
		w.queue = slices.Delete(w.queue, at, at+1)
		delete(w.services, service)
	}
}

func (w *waitingServices) leave(service types.NamespacedName) {
	if known := w.joining[service]; known != nil {
		known.joinAddresses, w.hasMoreJoining = nil, true
		delete(w.joining, service)
	}
}

// join records that a Service waits for pending writes to the VIPs of its plan.
func (w *waitingServices) join(service types.NamespacedName, plan ipam.Plan) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.services[service]; known != nil {
		known.joinAddresses, known.isJoinQueued = writtenBy(plan), false
		w.joining[service], w.hasMoreJoining = known, true
	}
}

func (w *waitingServices) stopJoining(service types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leave(service)
}

func (w *waitingServices) resumeJoining() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hasMoreJoining = true
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

// nextJoining returns the Services that can join now: for each address without a pending write the first
// ones in the line, at most as many as there are workers.
func (w *waitingServices) nextJoining(isPending func(netip.Addr) bool) (next []types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.hasMoreJoining {
		return nil
	}
	w.hasMoreJoining = false
	lines := map[netip.Addr][]types.NamespacedName{}
	for service, waiting := range w.joining {
		for _, address := range waiting.joinAddresses {
			lines[address] = append(lines[address], service)
		}
	}
	for address, line := range lines {
		if isPending(address) {
			continue
		}
		slices.SortFunc(line, w.compare)
		for _, service := range line[:min(len(line), serviceWorkers)] {
			if waiting := w.joining[service]; !waiting.isJoinQueued {
				waiting.isJoinQueued = true
				next = append(next, service)
			}
		}
	}
	return next
}

func (w *waiter) isJoinedBy(plan ipam.Plan) bool {
	written := writtenBy(plan)
	return slices.ContainsFunc(w.joinAddresses, func(address netip.Addr) bool { return slices.Contains(written, address) })
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

// A stateVersion identifies a state by its numbers of changes of VIPs and views.
type stateVersion struct{ changes, views uint64 }

func (w *waitingServices) present() stateVersion {
	w.mu.Lock()
	defer w.mu.Unlock()
	return stateVersion{w.changes.Load(), w.views.number}
}

// plan records that a plan is being made, from the current VIPs and views with this number.
func (w *waitingServices) plan(service types.NamespacedName, views uint64) stateVersion {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.services[service]; known != nil {
		known.isPlanned = true
	}
	return stateVersion{w.changes.Load(), views}
}

func (w *waitingServices) recordPlan(service types.NamespacedName, with stateVersion) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.services[service]; known != nil {
		known.plannedChange, known.plannedView = with.changes, with.views
	}
}

func (w *waitingServices) recordUnmet(service types.NamespacedName, unmet unmetRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.services[service]; known != nil {
		known.unmet, known.isKnown, known.isPlanned = unmet, true, false
	}
}

// earlier returns, in order, Services that have waited longer, may want an address of the plan and were not
// tried since the last change. Joining Services want no other address.
func (w *waitingServices) earlier(service types.NamespacedName, plan ipam.Plan) []types.NamespacedName {
	w.mu.Lock()
	defer w.mu.Unlock()
	var earlier []types.NamespacedName
	for other, waiting := range w.services {
		if len(waiting.joinAddresses) > 0 && !waiting.isJoinedBy(plan) {
			continue
		}
		mayWant := waiting.plannedChange == 0 || waiting.plannedView < waiting.affectingView ||
			waiting.plannedChange < w.changes.Load() && (!waiting.isKnown || plan.Takes(waiting.unmet.wants))
		if mayWant && w.compare(other, service) < 0 {
			earlier = append(earlier, other)
		}
	}
	slices.SortFunc(earlier, w.compare)
	return earlier
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
		if len(waiting.unmet.wants) > 0 {
			refused = append(refused, service)
		}
	}
	return refused
}

// addWaiting adds a new Service until its first pass. Those of the initial list are ordered by age.
func (r *serviceReconciler) addWaiting(service *corev1.Service, atStart bool) {
	if !r.serves(service) {
		return
	}
	since := r.now()
	if atStart {
		since = service.CreationTimestamp.Time
	}
	r.waiting.begin(service, since)
}

// errJoining is returned if a Service has to wait, and be requeued, until other plans are written.
var errJoining = errors.New("other plans for the VIP are being written")

func (r *serviceReconciler) requeueJoining() {
	for _, service := range r.waiting.nextJoining(r.vips.isPendingAddress) {
		r.later(service, noDelay)
	}
}

// serveAhead lets Services that have waited longer be planned first, and returns the resulting plan. It
// returns errNeedsExclusive if this needs other workers to pause, and errJoining if another plan must
// first be written to one of its VIPs, because a waiting worker would delay all other Services.
func (r *serviceReconciler) serveAhead(
	ctx context.Context, service types.NamespacedName, plan func() ipam.Plan,
) (ipam.Plan, error) {
	planned := plan()
	if r.serving {
		// This Service is one of those being served.
		return planned, nil
	}
	for !r.lock.isExclusive {
		if len(planned.Create)+len(planned.Bind) == 0 {
			// The plan takes nothing from others; comparing thousands of Services would be expensive.
			return planned, nil
		}
		ahead := r.waiting.earlier(service, planned)
		switch {
		case r.vips.isPending(planned) || r.waiting.joinsBefore(service, planned):
			r.waiting.join(service, planned)
			return planned, errJoining
		case len(ahead) > 0 && !r.lock.areActive(ahead):
			return planned, errNeedsExclusive
		case len(ahead) > 0:
			r.lock.wait()
			planned = plan()
		default:
			return planned, nil
		}
	}
	r.serving = true
	defer func() { r.serving = false }()
	for _, other := range r.waiting.earlier(service, planned) {
		if len(planned.Create)+len(planned.Bind) == 0 {
			// The plan no longer takes anything from others.
			break
		}
		r.waiting.recordPlan(other, r.waiting.present())
		again, err := r.reconcile(ctx, reconcile.Request{NamespacedName: other})
		if err != nil || again > 0 {
			r.later(other, again)
		}
		planned = plan()
	}
	return planned, nil
}
