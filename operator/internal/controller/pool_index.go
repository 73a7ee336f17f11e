// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/convert"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// A poolIndex caches the pools and the addresses of nodes, pods, routers and the Service network.
type poolIndex struct {
	mu       sync.Mutex
	occupied map[occupant][]desired.Occupied
	// hosts maps addresses to the nodes and routers that have them, sorted by Occupied.By.
	hosts   map[netip.Addr][]desired.Occupied
	version int
	// cachedFrom and versions identify the input of the cached view, which takes milliseconds to compute.
	cachedFrom int
	versions   []poolVersion
	cached     poolView
	// hasAdded includes addresses that pools add but that are not admitted yet, for the reconciler of pools.
	hasAdded bool
}

type poolView struct {
	number   int
	usable   []desired.Pool
	planned  []ipam.Pool
	problems []desired.Problem
}

type occupant struct{ kind, namespace, name string }

func newPoolIndex() *poolIndex {
	return &poolIndex{occupied: map[occupant][]desired.Occupied{}, hosts: map[netip.Addr][]desired.Occupied{}}
}

// watch updates the index from events. then is called with the changed addresses of nodes and routers.
func (x *poolIndex) watch(mgr ctrl.Manager, controller *builder.Builder, then func(q queue, hosts []netip.Addr)) error {
	controller.Watches(&corev1.Node{}, x.events("Node", then, func(object client.Object) []desired.Occupied {
		return desired.OccupiedByNode(object.(*corev1.Node))
	}))
	controller.Watches(&millracev1beta1.LBPeer{}, x.events("LBPeer", then, func(object client.Object) []desired.Occupied {
		return desired.OccupiedByPeer(object.(*millracev1beta1.LBPeer))
	}))
	serviceCIDR := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	_, err := mgr.GetRESTMapper().RESTMapping(serviceCIDR.GroupKind(), serviceCIDR.Version)
	switch {
	case meta.IsNoMatchError(err):
		// Before Kubernetes 1.33 only the API server knows the Service network, so used cluster IPs count.
		controller.Watches(&corev1.Service{}, x.events("Service", then, func(object client.Object) []desired.Occupied {
			return desired.OccupiedByService(object.(*corev1.Service))
		}))
	case err != nil:
		return fmt.Errorf("discover ServiceCIDRs: %w", err)
	default:
		controller.Watches(&networkingv1.ServiceCIDR{}, x.events("ServiceCIDR", then, func(object client.Object) []desired.Occupied {
			return desired.OccupiedByServiceCIDR(object.(*networkingv1.ServiceCIDR))
		}))
	}
	return nil
}

func (x *poolIndex) events(
	kind string, then func(q queue, hosts []netip.Addr), read func(client.Object) []desired.Occupied,
) handler.EventHandler {
	note := func(q queue, object client.Object, occupied []desired.Occupied) {
		if hosts, changed := x.put(occupant{kind, object.GetNamespace(), object.GetName()}, occupied); changed {
			then(q, hosts)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { note(q, e.Object, read(e.Object)) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { note(q, e.ObjectNew, read(e.ObjectNew)) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { note(q, e.Object, nil) },
	}
}

// put stores an object's addresses and returns the changed addresses of nodes and routers.
func (x *poolIndex) put(key occupant, occupied []desired.Occupied) (hosts []netip.Addr, changed bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if slices.Equal(x.occupied[key], occupied) {
		return nil, false
	}
	hosts = x.putHosts(x.occupied[key], occupied)
	x.version++
	x.occupied[key] = occupied
	if len(occupied) == 0 {
		delete(x.occupied, key)
	}
	return hosts, true
}

func (x *poolIndex) putHosts(before, now []desired.Occupied) (changed []netip.Addr) {
	for _, occupied := range before {
		address := occupied.Range.From()
		if !occupied.Host || slices.Contains(now, occupied) {
			continue
		}
		changed = append(changed, address)
		at := slices.Index(x.hosts[address], occupied)
		if x.hosts[address] = slices.Delete(x.hosts[address], at, at+1); len(x.hosts[address]) == 0 {
			delete(x.hosts, address)
		}
	}
	for _, occupied := range now {
		address := occupied.Range.From()
		if !occupied.Host || slices.Contains(before, occupied) {
			continue
		}
		changed = append(changed, address)
		at, _ := slices.BinarySearchFunc(x.hosts[address], occupied, func(a, b desired.Occupied) int { return cmp.Compare(a.By, b.By) })
		x.hosts[address] = slices.Insert(x.hosts[address], at, occupied)
	}
	return changed
}

// host returns a node or router with the address of a VIP, as younger if the VIP keeps the address.
func (x *poolIndex) host(address netip.Addr, vip *millracev1beta1.VIP) (occupant, younger string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, host := range x.hosts[address] {
		if host.Precedes(vip) {
			return host.By, ""
		}
		younger = cmp.Or(younger, host.By)
	}
	return "", younger
}

func (x *poolIndex) pools(objects []millracev1beta1.VIPPool) poolView {
	x.mu.Lock()
	defer x.mu.Unlock()
	versions := make([]poolVersion, 0, len(objects))
	for i := range objects {
		versions = append(versions, poolVersion{objects[i].UID, objects[i].Generation, objects[i].Status.Usable, desired.IsHeld(&objects[i])})
	}
	slices.SortFunc(versions, func(x, y poolVersion) int { return cmp.Compare(x.uid, y.uid) })
	if x.cachedFrom != x.version || x.versions == nil || !slices.EqualFunc(versions, x.versions, poolVersion.equal) {
		usable, problems := desired.Pools(objects, x.occupation())
		if !x.hasAdded {
			usable = desired.Admitted(usable, objects)
		}
		x.cached = poolView{x.cached.number + 1, usable, convert.Pools(usable), problems}
		x.cachedFrom, x.versions = x.version, versions
	}
	return x.cached
}

// poolOf returns the pool that assigns an address, according to the latest view.
func (x *poolIndex) poolOf(address netip.Addr) (name string, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, pool := range x.cached.planned {
		if pool.Addresses.Contains(address) {
			return pool.Name, true
		}
	}
	return "", false
}

type poolVersion struct {
	uid        types.UID
	generation int64
	usable     []string
	held       bool
}

func (v poolVersion) equal(other poolVersion) bool {
	return v.uid == other.uid && v.generation == other.generation && v.held == other.held && slices.Equal(v.usable, other.usable)
}

func (x *poolIndex) occupation() desired.Occupation {
	keys := make([]occupant, 0, len(x.occupied))
	for key := range x.occupied {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(x, y occupant) int {
		return cmp.Or(cmp.Compare(x.kind, y.kind), cmp.Compare(x.namespace, y.namespace), cmp.Compare(x.name, y.name))
	})
	var all []desired.Occupied
	for _, key := range keys {
		all = append(all, x.occupied[key]...)
	}
	return desired.NewOccupation(all)
}
