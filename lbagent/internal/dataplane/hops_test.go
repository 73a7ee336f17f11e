// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func hopOf(t *testing.T, d *Dataplane, id forwarding.NodeID) forwarding.Hop {
	t.Helper()
	_, hops, err := d.readNodes()
	if err != nil {
		t.Fatal(err)
	}
	return hops[id]
}

func TestSetHops(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	hop := forwarding.Hop{
		Interface: 7, VLAN: 100, MTU: 1500,
		Source: [6]byte{2, 0, 0, 0, 0, 1}, Destination: [6]byte{2, 0, 0, 0, 0, 2},
	}
	bad := hop
	bad.MTU = 65536
	check := func(step string, id forwarding.NodeID, want forwarding.Hop) {
		t.Helper()
		if got := hopOf(t, d, id); got != want {
			t.Errorf("%s: node %d: hop %+v, want %+v", step, id, got, want)
		}
	}
	apply(t, d, forwarding.PutNode{ID: 2, Node: forwarding.Node{IPv4: ip("198.51.100.12")}})
	if err := d.SetHops(map[forwarding.NodeID]forwarding.Hop{2: hop, 3: hop, 4: bad}); err == nil {
		t.Error("no error for an MTU out of range")
	}
	check("set", 2, hop)
	check("unknown node", 3, forwarding.Hop{})
	apply(t, d, forwarding.PutNode{ID: 3, Node: forwarding.Node{IPv6: ip("2001:db8::3")}})
	check("node added", 3, hop)
	state, err := d.Dump()
	if want := (forwarding.Node{IPv4: ip("198.51.100.12")}); err != nil || state.Nodes[2] != want {
		t.Errorf("node 2 dumped as %+v, %v; want %+v", state.Nodes[2], err, want)
	}
	if err := d.restore(); err != nil {
		t.Fatal(err)
	}
	apply(t, d, forwarding.PutNode{ID: 2, Node: forwarding.Node{IPv4: ip("198.51.100.12")}})
	check("read back, same address", 2, hop)
	apply(t, d, forwarding.PutNode{ID: 2, Node: forwarding.Node{IPv4: ip("198.51.100.22")}})
	check("other address", 2, forwarding.Hop{})
	if err := d.SetHops(map[forwarding.NodeID]forwarding.Hop{2: hop}); err != nil {
		t.Fatal(err)
	}
	check("hop set again", 2, hop)
	check("missing", 3, forwarding.Hop{})
	apply(t, d, forwarding.DeleteNode{ID: 2}, forwarding.PutNode{ID: 2, Node: forwarding.Node{IPv4: ip("198.51.100.22")}})
	check("deleted and put", 2, forwarding.Hop{})
}

func TestRenewLease(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	beat := func() (ticks uint64) {
		t.Helper()
		if err := d.maps.HopLease.Lookup(uint32(0), &ticks); err != nil {
			t.Fatal(err)
		}
		return ticks
	}
	if got := beat(); got != 0 {
		t.Errorf("heartbeat = %d before the first beat, want 0", got)
	}
	if err := d.RenewLease(); err != nil {
		t.Fatal(err)
	}
	if beat() == 0 {
		t.Error("the heartbeat is 0")
	}
}
