// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/convert"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// A vipCache merges VIPs from the watch with the operator's writes, because plans from the cache alone could
// assign an address twice while the watch lags behind.
type vipCache struct {
	// changes counts released or newly sharable addresses and ports. It is incremented with mu held, so
	// that a plan made with mu held has seen all of them.
	changes atomic.Uint64

	mu      sync.Mutex
	table   *ipam.Table
	objects map[netip.Addr]*millracev1beta1.VIP
	// pending is the set of addresses of plans that are being written. Their claims are in the table.
	pending map[netip.Addr]struct{}
	// former is the set of UIDs in claims whose Service no longer exists; they are reservations.
	former map[string]struct{}
}

func newVIPCache() *vipCache {
	l := &vipCache{
		table: ipam.NewTable(), objects: map[netip.Addr]*millracev1beta1.VIP{}, pending: map[netip.Addr]struct{}{},
		former: map[string]struct{}{},
	}
	l.changes.Store(1)
	return l
}

// addressOf returns false if the name of a VIP does not match its address, because the API server would
// accept a second such VIP.
func addressOf(object *millracev1beta1.VIP) (netip.Addr, bool) {
	address, problems := desired.ParseVIP(object)
	return address, len(problems) == 0
}

// put returns false if the cache has this version or a newer one. The object must not change afterwards.
func (l *vipCache) put(object *millracev1beta1.VIP) bool {
	address, ok := addressOf(object)
	if !ok {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.objects[address]
	if known != nil && !older(known, object) {
		return false
	}
	if known == nil && isShared(object) || known != nil && !equality.Semantic.DeepEqual(known.Spec.Claims, object.Spec.Claims) {
		l.changes.Add(1)
	}
	l.objects[address] = object
	l.table.Put(l.planned(address, object))
	return true
}

// planned converts a VIP for plans. l.mu must be held.
func (l *vipCache) planned(address netip.Addr, object *millracev1beta1.VIP) ipam.VIP {
	vip := convert.VIP(address, object)
	for i := range vip.Claims {
		if _, former := l.former[vip.Claims[i].UID]; former {
			vip.Claims[i].UID = ""
		}
	}
	return vip
}

func (l *vipCache) inherit(object *millracev1beta1.VIP, uid string) {
	address, ok := addressOf(object)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.former[uid] = struct{}{}
	if known := l.objects[address]; ok && known != nil {
		l.table.Put(l.planned(address, known))
	}
}

func (l *vipCache) isFormer(uid string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, former := l.former[uid]
	return former
}

// older compares versions: resource versions of one resource are ordered numbers.
func older(a, b *millracev1beta1.VIP) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err != nil || order < 0
}

// remove deletes an object, unless the address belongs to a newer object.
func (l *vipCache) remove(object *millracev1beta1.VIP) {
	address, ok := addressOf(object)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.objects[address]; known != nil && known.UID == object.UID {
		l.changes.Add(1)
		delete(l.objects, address)
		l.table.Delete(address)
	}
}

// object returns the VIP of an address, or nil. Callers must not change it.
func (l *vipCache) object(address netip.Addr) *millracev1beta1.VIP {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.objects[address]
}

// plan makes a plan and returns the existing VIPs that it updates, in the versions that it was made from.
func (l *vipCache) plan(pools []ipam.Pool, request ipam.Request) (ipam.Plan, map[netip.Addr]*millracev1beta1.VIP) {
	l.mu.Lock()
	defer l.mu.Unlock()
	plan := ipam.Make(l.table, pools, request)
	objects := map[netip.Addr]*millracev1beta1.VIP{}
	for _, write := range plan.Bind {
		objects[write.Address] = l.objects[write.Address]
	}
	return plan, objects
}

// addPending makes the writes of a plan visible to other plans before the API server has them.
func (l *vipCache) addPending(plan ipam.Plan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, write := range plan.Create {
		l.pending[write.Address] = struct{}{}
		l.table.Put(convert.VIP(write.Address, newVIP(write)))
	}
	for _, write := range plan.Bind {
		if object := l.objects[write.Address]; object != nil {
			l.pending[write.Address] = struct{}{}
			l.table.Put(l.planned(write.Address, boundVIP(object, write.Claim)))
		}
	}
}

func (l *vipCache) resolvePending(plan ipam.Plan) (kept bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept = true
	for _, write := range slices.Concat(plan.Create, plan.Bind) {
		delete(l.pending, write.Address)
		object := l.objects[write.Address]
		if object == nil {
			l.table.Delete(write.Address)
		} else {
			l.table.Put(l.planned(write.Address, object))
		}
		written := func(claim millracev1beta1.VIPClaim) bool { return claim.UID == write.Claim.UID }
		kept = kept && object != nil && slices.ContainsFunc(object.Spec.Claims, written)
	}
	if !kept {
		l.changes.Add(1)
	}
	return kept
}

func (l *vipCache) isPending(plan ipam.Plan) bool {
	return slices.ContainsFunc(writtenBy(plan), l.isPendingAddress)
}

func (l *vipCache) isPendingAddress(address netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, pending := l.pending[address]
	return pending
}

func (l *vipCache) isUsed(address netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, used := l.table.Get(address)
	return used
}

func (l *vipCache) claimed(namespace, name string) []*millracev1beta1.VIP {
	l.mu.Lock()
	defer l.mu.Unlock()
	addresses := l.table.Claimed(namespace, name)
	objects := make([]*millracev1beta1.VIP, 0, len(addresses))
	for _, address := range addresses {
		// Promised VIPs do not exist yet.
		if object := l.objects[address]; object != nil {
			objects = append(objects, object)
		}
	}
	return objects
}

func (l *vipCache) owners() []types.NamespacedName {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[types.NamespacedName]struct{}{}
	for _, object := range l.objects {
		for _, claim := range object.Spec.Claims {
			if claim.UID != "" {
				seen[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = struct{}{}
			}
		}
	}
	return slices.Collect(maps.Keys(seen))
}

// claimObject converts a claim for the API, without a release: only advanceRelease sets that.
func claimObject(claim ipam.Claim) millracev1beta1.VIPClaim {
	object := millracev1beta1.VIPClaim{
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, SharingKey: claim.SharingKey,
	}
	for _, port := range claim.Ports {
		object.Ports = append(object.Ports, millracev1beta1.ClaimedPort{Port: int32(port.Number), Protocol: corev1.Protocol(port.Protocol)})
	}
	return object
}
