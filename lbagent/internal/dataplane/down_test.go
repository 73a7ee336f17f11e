// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"testing"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// A node is marked down immediately. Only SetDown clears the mark, neither an older operation nor a hop.
func TestSetDown(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	node := forwarding.Node{IPv4: ip("198.51.100.12")}
	hop := forwarding.Hop{Interface: 7, MTU: 1500, Destination: [6]byte{2, 0, 0, 0, 0, 2}}
	setDown := func(ids ...forwarding.NodeID) {
		t.Helper()
		down := map[forwarding.NodeID]bool{}
		for _, id := range ids {
			down[id] = true
		}
		if err := d.SetDown(down); err != nil {
			t.Fatal(err)
		}
	}
	setHops := func(hops map[forwarding.NodeID]forwarding.Hop) {
		t.Helper()
		if err := d.SetHops(hops); err != nil {
			t.Fatal(err)
		}
	}
	check := func(step string, id forwarding.NodeID, wantDown bool) {
		t.Helper()
		var entry bpf.DatapathNode
		if err := d.maps.Nodes.Lookup(uint32(id), &entry); err != nil {
			t.Fatal(err)
		}
		down := entry.Flags&uint32(bpf.DatapathNodeFlagNODE_DOWN) != 0
		// Without an interface the fast path does not send to it.
		if down != wantDown || down == (entry.Ifindex != 0) {
			t.Errorf("%s: node %d down: %t, interface %d", step, id, down, entry.Ifindex)
		}
	}
	hops := map[forwarding.NodeID]forwarding.Hop{2: hop, 3: hop}
	apply(t, d, forwarding.PutNode{ID: 2, Node: node}, forwarding.PutNode{ID: 3, Node: forwarding.Node{IPv4: ip("198.51.100.13")}})
	setHops(hops)
	check("up", 2, false)
	setDown(2)
	check("down", 2, true)
	check("another node", 3, false)
	setHops(nil)
	setHops(hops)
	check("hop learned again", 2, true)
	node.Zone = 1
	apply(t, d, forwarding.PutNode{ID: 2, Node: node})
	check("zone changed", 2, true)
	setDown()
	check("node up again", 2, false)
	setDown(4)
	apply(t, d, forwarding.PutNode{ID: 4, Node: forwarding.Node{IPv4: ip("198.51.100.14")}})
	check("added after it went down", 4, true)
	node.Down = true
	apply(t, d, forwarding.PutNode{ID: 2, Node: node})
	setDown()
	check("down by an operation", 2, true)
}
