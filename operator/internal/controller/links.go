// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"sync"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// linkTracker counts the networks on the links of nodes that answer for VIPs. As an event handler it
// enqueues the Services with addresses when a network appears or disappears.
type linkTracker struct {
	vips *vipCache

	mu sync.Mutex
	// nodes counts the nodes of each network by VIPAdvertisement; byNode lists the networks of a node.
	nodes  map[string]map[netip.Prefix]int
	byNode map[string][]millracev1beta1.L2Reach
}

func newLinkTracker(l *vipCache) *linkTracker {
	return &linkTracker{vips: l, nodes: map[string]map[netip.Prefix]int{}, byNode: map[string][]millracev1beta1.L2Reach{}}
}

func (c *linkTracker) of(advertisement string) (networks []netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for network := range c.nodes[advertisement] {
		networks = append(networks, network)
	}
	return networks
}

func (c *linkTracker) set(node string, reach []millracev1beta1.L2Reach) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Adding before removing keeps unchanged networks above zero.
	added := c.count(reach, 1)
	removed := c.count(c.byNode[node], -1)
	if c.byNode[node] = reach; len(reach) == 0 {
		delete(c.byNode, node)
	}
	return added || removed
}

func (c *linkTracker) count(reach []millracev1beta1.L2Reach, by int) (changed bool) {
	for _, one := range reach {
		for _, text := range one.Networks {
			network, err := netip.ParsePrefix(text)
			if err != nil {
				continue
			}
			nodes := c.nodes[one.Advertisement]
			if nodes == nil {
				nodes = map[netip.Prefix]int{}
				c.nodes[one.Advertisement] = nodes
			}
			before := nodes[network]
			if nodes[network] += by; nodes[network] == 0 {
				delete(nodes, network)
			}
			changed = changed || before == 0 || before+by == 0
			if len(nodes) == 0 {
				delete(c.nodes, one.Advertisement)
			}
		}
	}
	return changed
}

func (c *linkTracker) update(q queue, name string, node *millracev1beta1.LBNode) {
	var reach []millracev1beta1.L2Reach
	if node != nil {
		reach = node.Status.L2
	}
	if c.set(name, reach) {
		enqueueServed(c.vips, q)
	}
}
