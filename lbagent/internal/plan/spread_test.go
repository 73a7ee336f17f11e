// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// A Local frontend with a shared VIP has a node table. Otherwise, it has one for TCP only, to find moved
// connections.
func TestLocalFrontendsHaveTables(t *testing.T) {
	alone, shared := frontend(1, "alone", 1), frontend(2, "shared")
	alone.Local, alone.Weights[2], alone.Key.Protocol = true, 1, forwarding.ProtocolUDP
	shared.Local, shared.Shared, shared.Weights = true, true, map[forwarding.NodeID]uint32{2: 1, 3: 2}
	have, problems := advance(t, NewPlanner(forwarding.NewState()), forwarding.NewState(), modelOf(alone, shared), ample)
	if len(problems) != 0 {
		t.Errorf("problems = %v, want none", problems)
	}
	if got := have.Frontends[alone.Key]; got.Table != 0 {
		t.Errorf("the UDP frontend with an exclusive VIP has a table: %+v", got)
	}
	got := have.Frontends[key(2)]
	if got.Table == 0 || !got.Local || got.Endpoints != 0 {
		t.Fatalf("shared frontend = %+v, want one with a node table", got)
	}
	for i, row := range *have.NodeTables[got.Table] {
		if row.Primary != 2 && row.Primary != 3 {
			t.Fatalf("row %d belongs to node %d, want node 2 or 3", i, row.Primary)
		}
	}
}

// Local frontends get the remaining tables in order, except for the reserve; others are reported. A later
// forwarding frontend gets its table immediately, and the last Local one releases its table for the reserve.
func TestLocalFrontendsYieldTables(t *testing.T) {
	limits := ample
	limits.NodeTables = 2 * localReserve
	var all []model.Frontend
	for vip := 1; vip <= limits.NodeTables; vip++ {
		local := large(frontend(vip, fmt.Sprintf("local%d", vip), 1))
		local.Local = true
		all = append(all, local)
	}
	have := forwarding.NewState()
	p := NewPlanner(have)
	for cluster := 0; cluster <= 3; cluster++ {
		if cluster > 0 {
			all = append(all, large(frontend(100+cluster, fmt.Sprintf("cluster%d", cluster), 1)))
		}
		var problems []Problem
		have, problems = advance(t, p, have, modelOf(all...), limits)
		with := limits.NodeTables - limits.NodeTables/localReserve - cluster
		for i, f := range all {
			got, found := have.Frontends[f.Key]
			if want := !f.Local || i < with; !found || got.Table != 0 != want {
				t.Errorf("%d Cluster frontends: frontend %s = %+v (%v), has a table: %v, want %v", cluster, f.Key, got, found, got.Table != 0, want)
			}
		}
		if len(problems) != limits.NodeTables-with {
			t.Errorf("%d Cluster frontends: problems %v, want one for each of %d frontends without a table", cluster, problems, limits.NodeTables-with)
		}
	}
}

// With session affinity, all connections of a client must reach the node in the row, including those through
// nodes with endpoints.
func TestLocalFrontendWithAffinityGoesByItsRow(t *testing.T) {
	f := frontend(1, "web", 1)
	f.Local, f.Affinity, f.Weights[2] = true, 10800, 2
	have := forwarding.NewState()
	p := NewPlanner(have)
	have, problems := advance(t, p, have, modelOf(f), ample)
	if len(problems) != 0 {
		t.Errorf("problems = %v, want none", problems)
	}
	affine := have.Frontends[key(1)]
	if affine.Table == 0 || affine.Local || affine.Affinity != 10800 || affine.Endpoints == 0 {
		t.Fatalf("frontend = %+v, want one that uses its node table", affine)
	}
	if owned := primariesOf(have.NodeTables[affine.Table]); len(owned) != 2 || owned[1] == 0 || owned[2] == 0 {
		t.Errorf("rows by node = %v, want nodes 1 and 2", owned)
	}

	// Connections established with affinity are found by the row.
	f.Affinity = 0
	have, _ = advance(t, p, have, modelOf(f), ample)
	if got := have.Frontends[key(1)]; !got.Local || got.Table != affine.Table {
		t.Errorf("frontend = %+v, previously %+v, want local endpoints preferred and the same table", got, affine)
	}
}

func TestOneServicePortOnSharedAndOwnVIP(t *testing.T) {
	first, second := frontend(1, "web", 1), frontend(2, "web", 1)
	first.Local, second.Local, second.Shared = true, true, true
	have, _ := advance(t, NewPlanner(forwarding.NewState()), forwarding.NewState(), modelOf(first, second), ample)
	if a, b := have.Frontends[key(1)], have.Frontends[key(2)]; b.Table == 0 || a.Table != b.Table || a.Endpoints != b.Endpoints {
		t.Errorf("frontends = %+v and %+v, want a shared table", a, b)
	}
}

// While a pod is alive, its connections find it by the table, which is continued when endpoints are ready
// again.
func TestTableOutlivesTheLastReadyEndpoint(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	ready := frontend(1, "web", 1)
	ready.Weights[2] = 1
	have, _ = advance(t, p, have, modelOf(ready), ample)
	before := have.Frontends[key(1)]
	table := *have.NodeTables[before.Table].Clone()

	unready := frontend(1, "web")
	unready.Draining, unready.OnlyEstablished = endpoints(1), true
	have, problems := advance(t, p, have, modelOf(unready), ample)
	if got := have.Frontends[key(1)]; got.Table != before.Table || got.Endpoints != 0 || len(problems) != 0 {
		t.Fatalf("frontend = %+v, problems = %v, want the table and no endpoints", got, problems)
	}
	if !slices.Equal(*have.NodeTables[before.Table], table) {
		t.Error("the table was modified")
	}
	if len(have.Endpoints) != 1 {
		t.Errorf("endpoints = %v, want the remaining one", have.Endpoints)
	}
	// The same after a restart.
	if again, _ := NewPlanner(have).Plan(have, modelOf(unready), ample); len(forwarding.Diff(have, again)) != 0 {
		t.Error("a restart changes the plan")
	}

	back := frontend(1, "web")
	back.Weights[3] = 1
	have, _ = advance(t, p, have, modelOf(back), ample)
	for i, row := range *have.NodeTables[have.Frontends[key(1)].Table] {
		if row.Primary != 3 || row.Chain[0] != table[i].Primary {
			t.Fatalf("row %d = %+v, previously %+v: want node 3 with the previous owner in its chain", i, row, table[i])
		}
	}

	gone := frontend(1, "web")
	have, _ = advance(t, p, have, modelOf(gone), ample)
	if got := have.Frontends[key(1)]; got.Table != 0 || len(have.NodeTables) != 0 {
		t.Errorf("frontend = %+v has a table without any endpoint", got)
	}
}

func TestNothingToHold(t *testing.T) {
	f := frontend(1, "web")
	f.Draining, f.OnlyEstablished = endpoints(1), true
	have, _ := advance(t, NewPlanner(forwarding.NewState()), forwarding.NewState(), modelOf(f), ample)
	if got := have.Frontends[key(1)]; got.Table != 0 {
		t.Errorf("frontend = %+v has a table", got)
	}
}

func TestChangeOfPolicy(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	f := frontend(1, "web", 1)
	f.Weights[2] = 1
	have, _ = advance(t, p, have, modelOf(f), ample)
	before := have.Frontends[key(1)]
	table := have.NodeTables[before.Table]

	f.Local = true
	have, _ = advance(t, p, have, modelOf(f), ample)
	if got := have.Frontends[key(1)]; !got.Local || got.Table != before.Table || have.NodeTables[got.Table] != table {
		t.Fatalf("frontend = %+v, previously %+v, want the same table", got, before)
	}
	if again, _ := NewPlanner(have).Plan(have, modelOf(f), ample); len(forwarding.Diff(have, again)) != 0 {
		t.Error("a restart changes the plan")
	}

	f.Local = false
	have, _ = advance(t, p, have, modelOf(f), ample)
	if got := have.Frontends[key(1)]; got != before {
		t.Errorf("frontend = %+v, want %+v", got, before)
	}
}
