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

// waking is which of the Services that wait are looked at when a VIP changes. A freed address can
// serve one of those that want any of its pool: the first of them in the line is woken, and the next
// one where that one cannot use it. All that a change may help for another reason are owed a look.
// They are woken a few at a time: thousands in the queue would keep all others waiting.
type waking struct {
	// freed are the addresses that got free, for as long as they are and anybody may want them.
	freed map[poolFamily]*freedAddresses
	// isOwing is true where Services may be owed a look, isDue where others may have to be woken.
	isOwing, isDue bool
}

// poolFamily are the addresses of a family in a pool.
type poolFamily struct {
	pool   string
	family ipam.Family
}

// freedAddresses got free, the last one with the change of this number.
type freedAddresses struct {
	addresses []netip.Addr
	number    uint64
}

// wish is what a Service waits for.
type wish struct {
	wants []ipam.Want
	// sharingKey is that of the Service: what becomes of addresses with it may help, too.
	sharingKey string
	// isOpen is true where any change may help.
	isOpen bool
	// labels are those of the Service, by which pools select it. asks is true where it says more of what
	// it wants, or what cannot be understood, or has an address: any pool may be that of the address.
	labels labels.Set
	asks   bool
}

// wishOf returns what a Service waits for which has this outcome. A quota that keeps one of several
// addresses away makes them depend on each other: another pool that gives the first one may help.
func wishOf(service *corev1.Service, request *ipam.Request, result *outcome) wish {
	overQuota := slices.ContainsFunc(result.plan.Wants, func(want ipam.Want) bool { return want.OverQuota })
	several := len(request.Families) > 1 || len(request.Asked) > 1
	return wish{
		wants: result.plan.Wants, sharingKey: request.SharingKey, isOpen: result.leftAlone || overQuota && several,
		labels: service.Labels, asks: len(request.Asked) > 0 || request.Pool != "" || result.misunderstood != nil || len(result.plan.Addresses) > 0,
	}
}

// vipChange is a VIP of which the claims, or the VIP itself, came or went.
type vipChange struct {
	address netip.Addr
	// namespaces and keys are those of its claims before and after.
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

// mayHelp reports whether a change may help a Service, or makes what it was told untrue, but for an
// address that got free and is any of a pool. One that is being planned for may have seen the change,
// or not.
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

// change takes note of a change of a VIP, which the ledger shows already. Those that it may help are
// owed a look.
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

// free takes note of an address that got free, and is one of this pool.
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

// looked takes note that a worker has looked at a Service, with all that had changed by a moment. What
// failed comes back by itself.
func (w *waitingServices) looked(service types.NamespacedName, with moment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waking.isDue = true
	if known := w.services[service]; known != nil {
		known.looked, known.seen, known.isWoken = with.changes, with.views, false
	}
}

// wake returns those that are to be looked at now. Each is woken once before it is looked at.
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
			// It is called in its turn, and plans again then.
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
			// All have been tried with it. Who comes later looks by itself.
			delete(w.waking.freed, of)
		}
	}
	return woken
}

// isEnough reports whether nobody further down the line is woken.
func isEnough(owed int, left map[poolFamily]int) bool { return owed > serviceWorkers && len(left) == 0 }

// stillFree forgets what is not free any more, and returns how many addresses are.
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

// offer returns of which addresses that are left over by those before it a Service wants one and was
// not tried with.
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

// known is the number of the last change of a VIP with which a Service was tried.
func (w *waiter) known() uint64 { return max(w.tried, w.looked) }

// isOwed reports whether something has changed that may help a Service since it was tried.
func (w *waiter) isOwed() bool { return w.owed > w.known() || w.concerned > max(w.viewed, w.seen) }

// wakeWaiting has those come back that may get something now.
func (r *serviceReconciler) wakeWaiting() {
	for _, service := range r.waiting.wake(r.ledger.isUsed) {
		r.later(service, atOnce)
	}
}

// wake adds to the queue who is to be looked at after a change of a VIP. isFreed says that there is
// none with the address any more.
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

// atOnce is a pause for what is to come back at once, and not as after a failure.
const atOnce = time.Nanosecond
