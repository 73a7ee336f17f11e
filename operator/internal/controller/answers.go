// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"sync"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/nodes"
)

// answerTracker maps VIPs to the ready node that answers for them on its links and reported last. As an
// event handler it enqueues the objects of addresses whose node changed.
type answerTracker struct {
	enqueue func(q queue, addresses []netip.Addr)

	mu sync.Mutex
	// nodes lists the nodes of an address, the most recent last; byNode lists the addresses of a node.
	nodes  map[netip.Addr][]string
	byNode map[string][]netip.Addr
}

func newAnswerTracker(enqueue func(q queue, addresses []netip.Addr)) *answerTracker {
	return &answerTracker{enqueue: enqueue, nodes: map[netip.Addr][]string{}, byNode: map[string][]netip.Addr{}}
}

func (c *answerTracker) of(address netip.Addr) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last(address)
}

func (c *answerTracker) last(address netip.Addr) string {
	if nodes := c.nodes[address]; len(nodes) > 0 {
		return nodes[len(nodes)-1]
	}
	return ""
}

func (c *answerTracker) set(node string, answering []string) (changed []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var present []netip.Addr
	for _, text := range answering {
		if address, err := netip.ParseAddr(text); err == nil {
			present = append(present, address)
		}
	}
	slices.SortFunc(present, netip.Addr.Compare)
	previous := c.byNode[node]
	for _, address := range previous {
		if _, stays := slices.BinarySearchFunc(present, address, netip.Addr.Compare); stays {
			continue
		}
		before := c.last(address)
		c.nodes[address] = slices.DeleteFunc(c.nodes[address], func(other string) bool { return other == node })
		if len(c.nodes[address]) == 0 {
			delete(c.nodes, address)
		}
		if c.last(address) != before {
			changed = append(changed, address)
		}
	}
	for _, address := range present {
		if _, stays := slices.BinarySearchFunc(previous, address, netip.Addr.Compare); !stays {
			c.nodes[address] = append(c.nodes[address], node)
			changed = append(changed, address)
		}
	}
	if c.byNode[node] = present; len(present) == 0 {
		delete(c.byNode, node)
	}
	return changed
}

func (c *answerTracker) update(q queue, name string, report *millracev1beta1.LBNodeReport) {
	var answering []string
	if report != nil && nodes.ReadyCondition(report.Status.Conditions) == nil {
		answering = report.Status.L2VIPs
	}
	c.enqueue(q, c.set(name, answering))
}
