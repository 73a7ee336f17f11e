// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Read finds the state of an open Dataplane, and does not use the map that the agent's writes of rows pass
// through.
func TestRead(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	state := forwarding.NewState()
	state.Self = forwarding.Self{ID: 1, IPv4: ip("198.51.100.11")}
	state.Nodes[2] = forwarding.Node{IPv4: ip("198.51.100.12")}
	state.VIPs[vip4] = struct{}{}
	state.Endpoints[5] = forwarding.Endpoint{Address: ip("198.18.0.5"), Port: 80}
	state.NodeTables[3], state.EndpointTables[4] = forwarding.NewNodeTable(), &forwarding.EndpointTable{}
	for row := range *state.NodeTables[3] {
		(*state.NodeTables[3])[row].Primary = forwarding.NodeID(1 + row%2)
	}
	for row := range state.EndpointTables[4] {
		state.EndpointTables[4][row] = 5
	}
	state.Frontends[forwarding.FrontendKey{VIP: vip4, Port: 80, Protocol: 6}] = forwarding.Frontend{ID: 1, Table: 3, Endpoints: 4}
	apply(t, d, forwarding.Diff(forwarding.NewState(), state)...)
	before := bytes.Repeat([]byte{0xa5}, 2*rowUpdateSize)
	if err := d.requestRows(before); err != nil {
		t.Fatal(err)
	}
	read, err := Read(cfg.PinRoot)
	if err != nil {
		t.Fatal(err)
	}
	after := make([]byte, len(before))
	if err := d.copyRows(after); err != nil || !slices.Equal(before, after) {
		t.Errorf("after Read, the row updates of the agent are %x, %v; want %x", after, err, before)
	}
	want, err := d.Dump()
	if err != nil || !reflect.DeepEqual(read, want) {
		t.Errorf("read %+v, want %+v, %v", read, want, err)
	}
	if !read.NodeTables[3].Equal(state.NodeTables[3]) || !reflect.DeepEqual(read.EndpointTables, state.EndpointTables) {
		t.Errorf("read tables %v and %v, want %v and %v", read.NodeTables, read.EndpointTables, state.NodeTables, state.EndpointTables)
	}
}
