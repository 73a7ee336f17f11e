// SPDX-License-Identifier: Apache-2.0

// Package removalguard delays mass removals of objects, such as a deleted CRD or all peers, which are
// usually mistakes. It also retains the endpoints of a deleted Service while its VIP is being released. It
// is pure.
package removalguard

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const (
	// burstDelay is how long a removal waits for further ones, because the API server deletes objects of a kind
	// one by one. If more follow, it waits for maxBurstDelay at most.
	burstDelay    = time.Second
	maxBurstDelay = 10 * time.Second
	// minMassRemoval is the minimum number of objects of which removing more than half is excessive. With fewer objects
	// only removing all is.
	minMassRemoval = 4
)

// Held describes the held objects of a kind.
type Held struct {
	Kind  string
	Count int
	Until time.Time
}

// Count returns the number of held objects of all kinds.
func Count(held []Held) (count int) {
	for _, h := range held {
		count += h.Count
	}
	return count
}

// Guard holds mass removals. The zero value holds nothing longer than a moment.
type Guard struct {
	Hold time.Duration

	previous *model.Snapshot
	kinds    map[string]*kind
	services []*corev1.Service
	deleted  map[serviceName]*corev1.Service
}

type kind struct {
	removed map[string]time.Time
	last    time.Time
	// held is the time since which removals are excessive, or zero.
	held time.Time
}

// New returns a Guard that continues from the previous agent's objects, or nil if unknown.
func New(limit time.Duration, before *model.Snapshot) *Guard {
	return &Guard{Hold: limit, previous: before, kinds: map[string]*kind{}}
}

// Advance returns the objects to use, including held ones, and the delay until its next call is due, or 0.
// If all objects of a kind, or more than half of many, are removed within a moment, they are held. Objects
// with AnnotationConfirmRemoval and VIPs that no Service needs are removed at once. EndpointSlices of a
// Service that is being deleted remain while it has a VIP.
func (g *Guard) Advance(objects *model.Snapshot, now time.Time) (*model.Snapshot, []Held, time.Duration) {
	result := *objects
	result.EndpointSlices = endpointSlices(g.previous, objects, g.releasedServices(objects))
	if g.previous == nil || g.Hold <= 0 {
		g.previous = &result
		return &result, nil, 0
	}
	a := advance{guard: g, now: now}
	needed := sync.OnceValue(func() func(*millracev1beta1.VIP) bool { return needs(objects) })
	result.Peers = step(&a, "LBPeer", g.previous.Peers, objects.Peers, nil)
	result.Advertisements = step(&a, "VIPAdvertisement", g.previous.Advertisements, objects.Advertisements, nil)
	result.LBNodes = step(&a, "LBNode", g.previous.LBNodes, objects.LBNodes, nil)
	result.VIPs = step(&a, "VIP", g.previous.VIPs, objects.VIPs, func(vip *millracev1beta1.VIP) bool { return needed()(vip) })
	result.Routes = step(&a, "VIPRoute", g.previous.Routes, objects.Routes, nil)
	g.previous = &result
	return &result, a.held, a.requeueAfter
}

type advance struct {
	guard        *Guard
	now          time.Time
	held         []Held
	requeueAfter time.Duration
}

func (a *advance) wait(until time.Time) {
	if left := until.Sub(a.now); left > 0 && (a.requeueAfter == 0 || left < a.requeueAfter) {
		a.requeueAfter = left
	}
}

type object interface {
	comparable
	metav1.Object
}

func key[T object](object T) string { return object.GetNamespace() + "/" + object.GetName() }

// step returns the objects of a kind to use. Objects that are not needed are removed at once; nil means
// that all are needed.
func step[T object](a *advance, name string, before, present []T, needed func(T) bool) []T {
	k := a.guard.kinds[name]
	if k == nil {
		k = &kind{removed: map[string]time.Time{}}
		a.guard.kinds[name] = k
	}
	var missing []T
	gone := map[string]time.Time{}
	for _, object := range removed(before, present) {
		if isConfirmed(object) || needed != nil && !needed(object) {
			continue
		}
		since, known := k.removed[key(object)]
		if !known {
			since, k.last = a.now, a.now
		}
		gone[key(object)] = since
		missing = append(missing, object)
	}
	k.removed = gone
	kept, until := k.retain(a, missingKeys(missing), len(present))
	if k.isHeld() && len(kept) > 0 {
		a.held = append(a.held, Held{Kind: name, Count: len(kept), Until: until})
	}
	if len(kept) == 0 {
		return present
	}
	result := slices.Clone(present)
	for _, object := range missing {
		if kept[key(object)] {
			result = append(result, object)
		}
	}
	return result
}

// removed returns the objects of before without a successor of the same name. Most objects are usually
// unchanged pointers.
func removed[T object](before, present []T) []T {
	came, went := delta.Between(before, present)
	if len(went) == 0 {
		return nil
	}
	fresh := make(map[string]struct{}, len(came))
	for _, object := range came {
		fresh[key(object)] = struct{}{}
	}
	return slices.DeleteFunc(went, func(object T) bool {
		_, replaced := fresh[key(object)]
		return replaced
	})
}

func missingKeys[T object](missing []T) []string {
	keys := make([]string, 0, len(missing))
	for _, object := range missing {
		keys = append(keys, key(object))
	}
	return keys
}

func isConfirmed(object metav1.Object) bool {
	_, confirmed := object.GetAnnotations()[millracev1beta1.AnnotationConfirmRemoval]
	return confirmed
}

func (k *kind) isHeld() bool { return !k.held.IsZero() }

func (k *kind) retain(a *advance, missing []string, present int) (kept map[string]bool, last time.Time) {
	if len(missing) == 0 {
		k.held = time.Time{}
		return nil, last
	}
	if !k.isHeld() && isExcessive(len(missing), present) {
		k.held = a.now
	}
	kept = map[string]bool{}
	for _, name := range missing {
		until := k.last.Add(burstDelay)
		if latest := k.removed[name].Add(maxBurstDelay); latest.Before(until) {
			until = latest
		}
		if k.isHeld() {
			until = later(k.held, k.removed[name]).Add(a.guard.Hold)
		}
		if until.After(a.now) {
			kept[name] = true
			last = later(last, until)
			a.wait(until)
		}
	}
	if len(kept) == 0 {
		k.held = time.Time{}
	}
	return kept, last
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func isExcessive(missing, present int) bool {
	return present == 0 || missing+present >= minMassRemoval && missing > present
}

// needs returns whether a VIP is needed: one of its Services exists, is not being deleted, and has no other
// address of the family.
func needs(objects *model.Snapshot) func(*millracev1beta1.VIP) bool {
	type claim struct {
		namespace, name string
		is4             bool
	}
	open := map[claim]bool{}
	for _, service := range objects.Services {
		if service.Spec.Type == corev1.ServiceTypeLoadBalancer && service.DeletionTimestamp == nil {
			open[claim{service.Namespace, service.Name, true}] = true
			open[claim{service.Namespace, service.Name, false}] = true
		}
	}
	claims := func(vip *millracev1beta1.VIP) []claim {
		address, err := netip.ParseAddr(vip.Spec.Address)
		if err != nil {
			return nil
		}
		var all []claim
		for i := range vip.Spec.Claims {
			all = append(all, claim{vip.Spec.Claims[i].Namespace, vip.Spec.Claims[i].Name, address.Is4()})
		}
		return all
	}
	for _, vip := range objects.VIPs {
		for _, served := range claims(vip) {
			delete(open, served)
		}
	}
	return func(vip *millracev1beta1.VIP) bool {
		return slices.ContainsFunc(claims(vip), func(c claim) bool { return open[c] })
	}
}
