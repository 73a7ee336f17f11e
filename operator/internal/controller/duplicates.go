// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/validation"
)

// duplicateTracker maps VIPs to a host that uses the same address, from LBNodeReports. As an event handler
// it enqueues the objects of addresses whose reported duplicate changed.
type duplicateTracker struct {
	enqueue func(q queue, addresses []netip.Addr)

	mu     sync.Mutex
	hosts  map[netip.Addr]map[string]millracev1beta1.DuplicateAddress
	byNode map[string][]netip.Addr
}

func newDuplicateTracker(enqueue func(q queue, addresses []netip.Addr)) *duplicateTracker {
	return &duplicateTracker{
		enqueue: enqueue, hosts: map[netip.Addr]map[string]millracev1beta1.DuplicateAddress{}, byNode: map[string][]netip.Addr{},
	}
}

func (c *duplicateTracker) of(address netip.Addr) validation.Duplicate {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.describe(address)
}

func (c *duplicateTracker) describe(address netip.Addr) validation.Duplicate {
	hosts := c.hosts[address]
	if len(hosts) == 0 {
		return validation.Duplicate{}
	}
	nodes := slices.Sorted(maps.Keys(hosts))
	node := nodes[0]
	// Nodes that withhold the VIP come first.
	for _, name := range nodes {
		if hosts[name].Withheld {
			node = name
			break
		}
	}
	host := hosts[node]
	return validation.Duplicate{
		Address: address, Host: host.HardwareAddress, Network: host.Interface + " of node " + node, Withheld: host.Withheld,
	}
}

func (c *duplicateTracker) set(node string, found []millracev1beta1.DuplicateAddress) []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	present := map[netip.Addr]millracev1beta1.DuplicateAddress{}
	for _, host := range found {
		if address, err := netip.ParseAddr(host.Address); err == nil {
			present[address] = host
		}
	}
	previous := c.byNode[node]
	before := map[netip.Addr]validation.Duplicate{}
	for _, address := range slices.AppendSeq(slices.Clone(previous), maps.Keys(present)) {
		before[address] = c.describe(address)
	}
	for _, address := range previous {
		if delete(c.hosts[address], node); len(c.hosts[address]) == 0 {
			delete(c.hosts, address)
		}
	}
	for address, host := range present {
		if c.hosts[address] == nil {
			c.hosts[address] = map[string]millracev1beta1.DuplicateAddress{}
		}
		c.hosts[address][node] = host
	}
	if c.byNode[node] = slices.Collect(maps.Keys(present)); len(present) == 0 {
		delete(c.byNode, node)
	}
	return slices.SortedFunc(func(yield func(netip.Addr) bool) {
		for address, reported := range before {
			if c.describe(address) != reported && !yield(address) {
				return
			}
		}
	}, netip.Addr.Compare)
}

func (c *duplicateTracker) update(q queue, name string, report *millracev1beta1.LBNodeReport) {
	var found []millracev1beta1.DuplicateAddress
	if report != nil {
		found = report.Status.Duplicates
	}
	c.enqueue(q, c.set(name, found))
}

func setUnique(conditions *[]metav1.Condition, generation int64, duplicate validation.Duplicate) {
	if duplicate == (validation.Duplicate{}) {
		meta.RemoveStatusCondition(conditions, millracev1beta1.ConditionUnique)
		return
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: millracev1beta1.ConditionUnique, Status: metav1.ConditionFalse, ObservedGeneration: generation,
		Reason: duplicate.Reason(), Message: duplicate.Message(),
	})
}
