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

// waking selects the waiting Services to requeue when VIPs change. For a freed address it is the first
// Service that wants one of the pool, then the next if that one cannot use it. Only a few are requeued at a
// time, because thousands in the queue would delay other Services.
type waking struct {
	freed map[poolFamily]*freedAddresses
	// isOwing is true if Services may be owed a pass; isDue, if more Services may have to be requeued.
	isOwing, isDue bool
}

type poolFamily struct {
	pool   string
	family ipam.Family
}

// number is that of the change that freed the last address.
type freedAddresses struct {
	addresses []netip.Addr
	number    uint64
}

type wish struct {
	wants      []ipam.Want
	sharingKey string
	// isOpen is true if any change may help.
	isOpen bool
	// labels are selected by pools. asks is true if the Service requests a pool or addresses, is invalid or
	// already has an address; then any pool may matter.
	labels labels.Set
	asks   bool
}

// wishOf returns the unsatisfied part of a request. If a quota withholds one of several addresses, another
// pool for the first address may help.
func wishOf(service *corev1.Service, request *ipam.Request, result *outcome) wish {
	overQuota := slices.ContainsFunc(result.plan.Wants, func(want ipam.Want) bool { return want.OverQuota })
	several := len(request.Families) > 1 || len(request.Asked) > 1
	return wish{
		wants: result.plan.Wants, sharingKey: request.SharingKey, isOpen: result.leftAlone || overQuota && several,
		labels: service.Labels, asks: len(request.Asked) > 0 || request.Pool != "" || result.misunderstood != nil || len(result.plan.Addresses) > 0,
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

// mayHelp reports whether a change, apart from freed addresses, may help a Service or makes its refusal
// wrong. A Service that is being planned may not have seen the change.
func (c vipChange) mayHelp(w *waiter) bool {
	if !w.isKnown || w.isPlanned || w.wish.isOpen {
		return w.isPlanned || w.wish.isOpen
	}
	overQuota := false
	for _, want := range w.wish.wants {
		if want.Address == c.address {
			return true
		}
		overQuota = overQuota || want.OverQuota
	}
	_, sameKey := c.keys[w.wish.sharingKey]
	_, sameNamespace := c.namespaces[w.name.Namespace]
	isSharer := w.wish.sharingKey != ""
	return isSharer && sameKey || (isSharer || overQuota) && sameNamespace
}

// change marks the Services that a change of a VIP, already in the ledger, may help.
func (w *waitingServices) change(change vipChange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	number := w.changes.Load()
	for _, waiting := range w.line {
		if change.mayHelp(waiting) {
			waiting.owed, w.waking.isOwing = number, true
		}
	}
	w.waking.isDue = true
}

func (w *waitingServices) free(address netip.Addr, pool string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := poolFamily{pool, ipam.FamilyOf(address)}
	freed := w.waking.freed[of]
	if freed == nil {
		freed = &freedAddresses{}
		w.waking.freed[of] = freed
	}
	if !slices.Contains(freed.addresses, address) {
		freed.addresses = append(freed.addresses, address)
	}
	freed.number, w.waking.isDue = w.changes.Load(), true
}

// looked records the state that a worker reconciled a Service with.
func (w *waitingServices) looked(service types.NamespacedName, with moment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waking.isDue = true
	if known := w.services[service]; known != nil {
		known.looked, known.seen, known.isWoken = with.changes, with.views, false
	}
}

// wake returns the Services to requeue now, each once until its next pass.
func (w *waitingServices) wake(isUsed func(netip.Addr) bool) (woken []types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.waking.isDue {
		return nil
	}
	w.waking.isDue = false
	left := w.waking.stillFree(isUsed)
	if len(left) == 0 && !w.waking.isOwing {
		return nil
	}
	owed, wanted := 0, map[poolFamily]bool{}
	for _, waiting := range w.line {
		if len(waiting.joins) > 0 {
			// A joining Service is called in its turn and is planned again then.
			continue
		}
		isOwed := waiting.isOwed()
		of, wants := w.waking.offer(waiting, left)
		if isOwed {
			owed++
		}
		if isEnough(owed, left) {
			break
		}
		if wants {
			left[of]--
			wanted[of] = true
		}
		if (wants || isOwed && owed <= serviceWorkers) && !waiting.isWoken {
			waiting.isWoken = true
			woken = append(woken, waiting.name)
		}
	}
	w.waking.isOwing = owed > 0
	for of := range left {
		if !wanted[of] {
			// All waiting Services were tried with it.
			delete(w.waking.freed, of)
		}
	}
	return woken
}

func isEnough(owed int, left map[poolFamily]int) bool { return owed > serviceWorkers && len(left) == 0 }

func (w *waking) stillFree(isUsed func(netip.Addr) bool) map[poolFamily]int {
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

// offer returns the pool of a freed address that the Service wants, was not tried with, and that is not
// left to earlier Services.
func (w *waking) offer(waiting *waiter, left map[poolFamily]int) (poolFamily, bool) {
	if len(left) == 0 {
		return poolFamily{}, false
	}
	for _, want := range waiting.wish.wants {
		of := poolFamily{want.Pool, want.Family}
		if !want.Address.IsValid() && !want.OverQuota && left[of] > 0 && w.freed[of].number > waiting.known() {
			return of, true
		}
	}
	return poolFamily{}, false
}

func (w *waiter) known() uint64 { return max(w.tried, w.looked) }

func (w *waiter) isOwed() bool { return w.owed > w.known() || w.concerned > max(w.viewed, w.seen) }

func (r *serviceReconciler) wakeWaiting() {
	for _, service := range r.waiting.wake(r.ledger.isUsed) {
		r.later(service, atOnce)
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
	for _, service := range h.waiting.wake(h.ledger.isUsed) {
		q.Add(ctrl.Request{NamespacedName: service})
	}
}

// atOnce requeues without the back-off of a failure.
const atOnce = time.Nanosecond
