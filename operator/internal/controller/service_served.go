// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/validation"
)

func (r *serviceReconciler) judge(ctx context.Context, service *corev1.Service, result serviceResult) (validation.Result, error) {
	list := &millracev1beta1.VIPAdvertisementList{}
	if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return validation.Result{}, fmt.Errorf("list VIPAdvertisements: %w", err)
	}
	surroundings := validation.Inputs{Zones: r.zones.count()}
	for i := range list.Items {
		if advertisement, problems := desired.ParseAdvertisement(&list.Items[i]); len(problems) == 0 {
			surroundings.Advertisements = append(surroundings.Advertisements, advertisement)
			surroundings.Announced = append(surroundings.Announced, r.announcers.families(&advertisement))
			surroundings.Networks = append(surroundings.Networks, r.links.of(advertisement.Name))
		}
	}
	subject := validation.Subject{
		Service: service, Conflicts: result.plan.Conflicts, OverCapacity: r.overCapacity.nodesOf(client.ObjectKeyFromObject(service)),
		Foreign: namesOf(result.foreign), Contested: r.conflicts.of(service).Contested(),
	}
	for _, address := range result.plan.Addresses {
		vip := r.vips.object(address)
		if vip == nil {
			// The VIP was just deleted; its event follows.
			continue
		}
		host, _ := r.pools.host(address, vip)
		subject.Addresses = append(subject.Addresses, validation.Address{
			Addr: address, Pool: vip.Spec.Pool, Services: r.labelsOn(ctx, vip, service), Host: host,
			Duplicate: r.duplicates.of(address),
		})
	}
	return validation.Validate(subject, surroundings), nil
}

func (r *serviceReconciler) labelsOn(ctx context.Context, vip *millracev1beta1.VIP, own *corev1.Service) []labels.Set {
	sets := []labels.Set{own.Labels}
	for _, claim := range vip.Spec.Claims {
		if claim.UID == "" || claim.UID == string(own.UID) {
			continue
		}
		other := &corev1.Service{}
		key := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
		if err := r.client.Get(ctx, key, other); err == nil && string(other.UID) == claim.UID {
			sets = append(sets, other.Labels)
		}
	}
	return sets
}

func servedCondition(verdict validation.Result) metav1.Condition {
	condition := metav1.Condition{
		Type:   millracev1beta1.ConditionServed,
		Status: metav1.ConditionTrue,
		Reason: millracev1beta1.ReasonServed,
	}
	var sentences []string
	if len(verdict.Problems) > 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, verdict.Problems[0].Reason
	}
	for _, problem := range verdict.Problems {
		sentences = append(sentences, problem.Message)
	}
	condition.Message = control.Truncate(strings.Join(append(sentences, verdict.Notes...), "; "), control.MaxMessage)
	return condition
}

// portStatuses returns all ports of the Service if any of them is not served, as the API requires.
func portStatuses(service *corev1.Service, address string, failed []validation.PortError) []corev1.PortStatus {
	here := func(e validation.PortError) bool { return e.Address.String() == address }
	if !slices.ContainsFunc(failed, here) {
		return nil
	}
	var statuses []corev1.PortStatus
	for _, port := range service.Spec.Ports {
		status := corev1.PortStatus{Port: port.Port, Protocol: port.Protocol}
		for _, e := range failed {
			if here(e) && int32(e.Port.Number) == port.Port && e.Port.Protocol == string(port.Protocol) {
				name := millracev1beta1.PortErrorPrefix + e.Reason
				status.Error = &name
			}
		}
		statuses = append(statuses, status)
	}
	return statuses
}

// zoneTracker enqueues the Services with addresses when the number of zones crosses the limit.
type zoneTracker struct {
	vips *vipCache

	mu    sync.Mutex
	zones map[string]string
	nodes map[string]int
}

func newZoneTracker(l *vipCache) *zoneTracker {
	return &zoneTracker{vips: l, zones: map[string]string{}, nodes: map[string]int{}}
}

func (c *zoneTracker) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.nodes)
}

func (c *zoneTracker) set(node, zone string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.nodes)
	if previous := c.zones[node]; previous != "" {
		if c.nodes[previous]--; c.nodes[previous] == 0 {
			delete(c.nodes, previous)
		}
	}
	delete(c.zones, node)
	if zone != "" {
		c.zones[node] = zone
		c.nodes[zone]++
	}
	after := len(c.nodes)
	return before != after && max(before, after) > validation.MaxZones
}

func (c *zoneTracker) update(q queue, name string, node *millracev1beta1.LBNode) {
	zone := ""
	if node != nil {
		zone = node.Spec.Zone
	}
	if c.set(name, zone) {
		enqueueServed(c.vips, q)
	}
}

// enqueueServed enqueues Services with delay and low priority: when the first node announces 20,000
// Services, their conditions take minutes to write, and new Services must not wait for that.
func enqueueServed(l *vipCache, q queue) {
	options := priorityqueue.AddOpts{After: control.Coalesce, Priority: new(handler.LowPriority)}
	for _, owner := range l.owners() {
		request := reconcile.Request{NamespacedName: owner}
		if prioritized, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
			prioritized.AddWithOpts(options, request)
		} else {
			q.AddAfter(request, control.Coalesce)
		}
	}
}

func advertised(l *vipCache) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, _ event.CreateEvent, q queue) { enqueueServed(l, q) },
		UpdateFunc: func(_ context.Context, _ event.UpdateEvent, q queue) { enqueueServed(l, q) },
		DeleteFunc: func(_ context.Context, _ event.DeleteEvent, q queue) { enqueueServed(l, q) },
	}
}

// serviceEvents enqueues a Service and, when its labels change, the Services that share an address with it.
// created is called for each new Service; atStart is true during the initial list.
func serviceEvents(l *vipCache, created func(service *corev1.Service, atStart bool)) handler.EventHandler {
	add := func(q queue, service client.Object) {
		q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(service)})
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			created(e.Object.(*corev1.Service), e.IsInInitialList)
			add(q, e.Object)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { add(q, e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			add(q, e.ObjectNew)
			if labels.Equals(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) {
				return
			}
			for _, vip := range l.claimed(e.ObjectNew.GetNamespace(), e.ObjectNew.GetName()) {
				for _, claim := range vip.Spec.Claims {
					q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}})
				}
			}
		},
	}
}
