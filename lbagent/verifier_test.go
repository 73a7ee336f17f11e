// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/reconcile"
	"github.com/millrace-lb/millrace/test/isolated"
)

// TestMapsAreVerified checks that the agent detects and repairs changes by another program, and counts only
// these.
func TestMapsAreVerified(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	c := newGenerated(t, 3, 4)
	c.open()
	c.pass()
	c.pass()
	c.loop.maps.VerifyFrom(time.Time{})
	now := time.Now()
	// around verifies all parts and returns the number of repaired entries.
	around := func() float64 {
		t.Helper()
		before := repairs(t, c.loop)
		for range reconcile.VerifyParts + 2 {
			now = now.Add(reconcile.VerifyEvery)
			_, err := c.loop.pass(now)
			checkFill(t, c.loop)
			if err != nil {
				t.Fatal(err)
			}
		}
		return repairs(t, c.loop) - before
	}
	if wrong := around(); wrong > 0 {
		t.Fatalf("%v entries were repaired without a foreign write", wrong)
	}
	good := servedBy(t, c)
	have := c.loop.maps.Have()
	var key forwarding.FrontendKey
	var frontend forwarding.Frontend
	var id forwarding.EndpointID
	var slot forwarding.EndpointTableSlot
	for k, f := range have.Frontends {
		if f.Endpoints != 0 {
			key, frontend, slot = k, f, f.Endpoints
			id = have.EndpointTables[slot][0]
		}
	}
	if id == 0 {
		t.Fatal("this node has no endpoint")
	}
	other := forwarding.Endpoint{Address: netip.MustParseAddr("198.19.255.1"), Port: 1}
	refusing := frontend
	refusing.Refuses = true
	emptied := *have.EndpointTables[slot]
	emptied[7] = 0
	for _, write := range []forwarding.Op{
		forwarding.DeleteFrontend{Key: key},
		forwarding.PutFrontend{Key: key, Frontend: refusing},
		forwarding.DeleteVIP{Address: key.VIP},
		forwarding.PutEndpoint{ID: id, Endpoint: other},
		forwarding.PutEndpointTable{Slot: slot, Table: &emptied},
		forwarding.PutRows{Slot: frontend.Table, Changed: []uint32{9}, Rows: []forwarding.Row{{Primary: 77}}},
	} {
		if err := c.plane.Apply(write); err != nil {
			t.Fatal(err)
		}
		if wrong := around(); wrong == 0 {
			t.Errorf("%T: no entry was repaired", write)
		}
		if got := servedBy(t, c); !reflect.DeepEqual(got, good) {
			t.Fatalf("%T: the maps serve\n%+v\nwant\n%+v", write, got, good)
		}
	}
	if wrong := around(); wrong > 0 {
		t.Errorf("%v entries were repaired again", wrong)
	}
}

// servedFrontend is the forwarding of a frontend's packets, independent of ids.
type servedFrontend struct {
	primaries [forwarding.Rows]forwarding.NodeID
	endpoints map[forwarding.Endpoint]int
	refuses   bool
	isVIP     bool
}

func servedBy(t *testing.T, c *generated) map[forwarding.FrontendKey]servedFrontend {
	t.Helper()
	state, err := c.plane.Dump()
	if err != nil {
		t.Fatal(err)
	}
	all := map[forwarding.FrontendKey]servedFrontend{}
	for key, frontend := range state.Frontends {
		s := servedFrontend{refuses: frontend.Refuses, endpoints: map[forwarding.Endpoint]int{}}
		_, s.isVIP = state.VIPs[key.VIP]
		for row, entry := range *state.NodeTables[frontend.Table] {
			s.primaries[row] = entry.Primary
		}
		if frontend.Endpoints != 0 {
			for _, id := range state.EndpointTables[frontend.Endpoints] {
				s.endpoints[state.Endpoints[id]]++
			}
		}
		all[key] = s
	}
	return all
}

func repairs(t *testing.T, l *loop) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(l.passes)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "millrace_map_repairs_total" {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("metric not found")
	return 0
}
