// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
)

// capacityTracker maps Services to one node whose BPF maps cannot hold them, so that few writes follow when
// nodes fill up one after another. As an event handler it enqueues Services whose reported nodes changed.
type capacityTracker struct {
	mu     sync.Mutex
	byNode map[string][]types.NamespacedName
	nodes  map[types.NamespacedName]sets.Set[string]
}

func newCapacityTracker() *capacityTracker {
	return &capacityTracker{byNode: map[string][]types.NamespacedName{}, nodes: map[types.NamespacedName]sets.Set[string]{}}
}

// nodesOf returns the first node without capacity and whether there are more, or "".
func (c *capacityTracker) nodesOf(service types.NamespacedName) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.describe(service)
}

func (c *capacityTracker) describe(service types.NamespacedName) string {
	nodes := c.nodes[service].UnsortedList()
	switch len(nodes) {
	case 0:
		return ""
	case 1:
		return nodes[0]
	}
	return slices.Min(nodes) + " and others"
}

func (c *capacityTracker) set(node string, references []millracev1beta1.ServiceReference) []types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()
	previous := c.byNode[node]
	var present []types.NamespacedName
	for _, reference := range references {
		present = append(present, types.NamespacedName{Namespace: reference.Namespace, Name: reference.Name})
	}
	concerned := sets.New(previous...).Insert(present...).UnsortedList()
	before := map[types.NamespacedName]string{}
	for _, service := range concerned {
		before[service] = c.describe(service)
	}
	for _, service := range previous {
		if c.nodes[service].Delete(node).Len() == 0 {
			delete(c.nodes, service)
		}
	}
	for _, service := range present {
		if c.nodes[service] == nil {
			c.nodes[service] = sets.New[string]()
		}
		c.nodes[service].Insert(node)
	}
	if c.byNode[node] = present; len(present) == 0 {
		delete(c.byNode, node)
	}
	return slices.DeleteFunc(concerned, func(service types.NamespacedName) bool { return c.describe(service) == before[service] })
}

func (c *capacityTracker) update(q queue, name string, report *millracev1beta1.LBNodeReport) {
	var unfit []millracev1beta1.ServiceReference
	if report != nil {
		unfit = report.Status.ServicesOverCapacity
	}
	for _, service := range c.set(name, unfit) {
		q.AddAfter(reconcile.Request{NamespacedName: service}, control.Coalesce)
	}
}
