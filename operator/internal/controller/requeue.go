// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// requeuer selects the waiting Services to requeue when VIPs change. For a freed address it is the first
// Service that wants one of the pool, then the next if that one cannot use it. Only a few are requeued at a
// time, because thousands in the queue would delay other Services.
type requeuer struct {
	freed map[poolFamily]*freedAddresses
	// hasAffected is true if Services may be affected by a change; isDue, if more Services may have to be
	// requeued.
	hasAffected, isDue bool
}

type poolFamily struct {
	pool   string
	family ipam.Family
}

// freedAddresses are the freed addresses of a pool. number is that of the change that freed the last one.
type freedAddresses struct {
	addresses []netip.Addr
	number    uint64
}

type unmetRequest struct {
	wants      []ipam.Want
	sharingKey string
	// isOpen is true if any change may help.
	isOpen bool
	// labels are selected by pools. isSpecific is true if the Service requests a pool or addresses, is
	// invalid or already has an address; then any pool may matter.
	labels     labels.Set
	isSpecific bool
}

// unmetRequestOf returns the unsatisfied part of a request. If a quota withholds one of several
// addresses, another pool for the first address may help.
func unmetRequestOf(service *corev1.Service, request *ipam.Request, result *serviceResult) unmetRequest {
	overQuota := slices.ContainsFunc(result.plan.Wants, func(want ipam.Want) bool { return want.OverQuota })
	several := len(request.Families) > 1 || len(request.Addresses) > 1
	return unmetRequest{
		wants: result.plan.Wants, sharingKey: request.SharingKey, isOpen: result.isForeign || overQuota && several,
		labels: service.Labels, isSpecific: len(request.Addresses) > 0 || request.Pool != "" || result.parseError != nil || len(result.plan.Addresses) > 0,
	}
}

type vipChange struct {
	address netip.Addr
	// namespaces and keys are those of its claims before and after the change.
	namespaces, keys map[string]struct{}
}

func newVIPChange(address netip.Addr, before, after []millracev1beta1.VIPClaim) vipChange {
	change := vipChange{address, map[string]struct{}{}, map[string]struct{}{}}
	for _, claims := range [...][]millracev1beta1.VIPClaim{before, after} {
		for i := range claims {
			change.namespaces[claims[i].Namespace] = struct{}{}
			change.keys[claims[i].SharingKey] = struct{}{}
		}
	}
	return change
}

// mayAffect reports whether a change, apart from freed addresses, may help a Service or makes its refusal
// wrong. A Service that is being planned may not have seen the change.
func (c vipChange) mayAffect(w *waiter) bool {
	if !w.isKnown || w.isPlanned || w.unmet.isOpen {
		return w.isPlanned || w.unmet.isOpen
	}
	overQuota := false
	for _, want := range w.unmet.wants {
		if want.Address == c.address {
			return true
		}
		overQuota = overQuota || want.OverQuota
	}
	_, sameKey := c.keys[w.unmet.sharingKey]
	_, sameNamespace := c.namespaces[w.name.Namespace]
	isSharer := w.unmet.sharingKey != ""
	return isSharer && sameKey || (isSharer || overQuota) && sameNamespace
}

// change marks the Services that a change of a VIP, already in the cache, may help.
func (w *waitingServices) change(change vipChange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	number := w.changes.Load()
	for _, waiting := range w.queue {
		if change.mayAffect(waiting) {
			waiting.affectingChange, w.requeuer.hasAffected = number, true
		}
	}
	w.requeuer.isDue = true
}

func (w *waitingServices) free(address netip.Addr, pool string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := poolFamily{pool, ipam.FamilyOf(address)}
	freed := w.requeuer.freed[of]
	if freed == nil {
		freed = &freedAddresses{}
		w.requeuer.freed[of] = freed
	}
	if !slices.Contains(freed.addresses, address) {
		freed.addresses = append(freed.addresses, address)
	}
	freed.number, w.requeuer.isDue = w.changes.Load(), true
}

// recordReconcile records the state with which a worker reconciled a Service.
func (w *waitingServices) recordReconcile(service types.NamespacedName, with stateVersion) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requeuer.isDue = true
	if known := w.services[service]; known != nil {
		known.reconciledChange, known.reconciledView, known.isRequeued = with.changes, with.views, false
	}
}

// takeDue returns the Services to requeue now, each once until its next pass.
func (w *waitingServices) takeDue(isUsed func(netip.Addr) bool) (due []types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.requeuer.isDue {
		return nil
	}
	w.requeuer.isDue = false
	left := w.requeuer.stillFree(isUsed)
	if len(left) == 0 && !w.requeuer.hasAffected {
		return nil
	}
	affected, wanted := 0, map[poolFamily]bool{}
	for _, waiting := range w.queue {
		if len(waiting.joinAddresses) > 0 {
			// A joining Service is requeued when it can join and is planned again then.
			continue
		}
		isAffected := waiting.isAffected()
		of, wants := w.requeuer.nextFreed(waiting, left)
		if isAffected {
			affected++
		}
		if isEnough(affected, left) {
			break
		}
		if wants {
			left[of]--
			wanted[of] = true
		}
		if (wants || isAffected && affected <= serviceWorkers) && !waiting.isRequeued {
			waiting.isRequeued = true
			due = append(due, waiting.name)
		}
	}
	w.requeuer.hasAffected = affected > 0
	for of := range left {
		if !wanted[of] {
			// All waiting Services were tried with it.
			delete(w.requeuer.freed, of)
		}
	}
	return due
}

func isEnough(affected int, left map[poolFamily]int) bool {
	return affected > serviceWorkers && len(left) == 0
}

func (w *requeuer) stillFree(isUsed func(netip.Addr) bool) map[poolFamily]int {
	left := map[poolFamily]int{}
	for of, freed := range w.freed {
		if freed.addresses = slices.DeleteFunc(freed.addresses, isUsed); len(freed.addresses) == 0 {
			delete(w.freed, of)
			continue
		}
		left[of] = len(freed.addresses)
	}
	return left
}

// nextFreed returns the pool of a freed address that the Service wants, was not tried with, and that is not
// left to earlier Services.
func (w *requeuer) nextFreed(waiting *waiter, left map[poolFamily]int) (poolFamily, bool) {
	if len(left) == 0 {
		return poolFamily{}, false
	}
	for _, want := range waiting.unmet.wants {
		of := poolFamily{want.Pool, want.Family}
		if !want.Address.IsValid() && !want.OverQuota && left[of] > 0 && w.freed[of].number > waiting.lastChange() {
			return of, true
		}
	}
	return poolFamily{}, false
}

func (w *waiter) lastChange() uint64 { return max(w.plannedChange, w.reconciledChange) }

func (w *waiter) isAffected() bool {
	return w.affectingChange > w.lastChange() || w.affectingView > max(w.plannedView, w.reconciledView)
}

func (r *serviceReconciler) requeueWaiting() {
	for _, service := range r.waiting.takeDue(r.vips.isUsed) {
		r.later(service, noDelay)
	}
}

// wake enqueues Services after a change. isFreed is true if the address no longer has a VIP.
func (h vipEvents) wake(q queue, before, after *millracev1beta1.VIP, isFreed bool) {
	address, ok := addressOf(before)
	if !ok {
		return
	}
	var claims []millracev1beta1.VIPClaim
	if after != nil {
		claims = after.Spec.Claims
	}
	h.waiting.change(newVIPChange(address, before.Spec.Claims, claims))
	if pool, ok := h.pools.poolOf(address); ok && isFreed {
		h.waiting.free(address, pool)
	}
	for _, service := range h.waiting.takeDue(h.vips.isUsed) {
		q.Add(ctrl.Request{NamespacedName: service})
	}
}

// noDelay requeues without the back-off of a failure.
const noDelay = time.Nanosecond
