// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

type nodeWeights = map[forwarding.NodeID]uint32

func six(vip int, service string, weights nodeWeights) model.Frontend {
	f := frontend(1, service)
	f.Key.VIP, f.Weights = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(vip)}), weights
	return f
}

// dual returns the frontends of a dual-stack Service with two ports and weights by family.
func dual(four, sixth nodeWeights) []model.Frontend {
	var all []model.Frontend
	for _, port := range []uint16{80, 443} {
		a, b := frontend(1, "web"), six(1, "web", sixth)
		a.Weights = four
		for _, f := range []model.Frontend{a, b} {
			f.Key.Port, f.PortName = port, fmt.Sprint(port)
			all = append(all, f)
		}
	}
	return all
}

func slotsIn(state *forwarding.State) map[forwarding.NodeTableSlot]int {
	slots := map[forwarding.NodeTableSlot]int{}
	for _, f := range state.Frontends {
		slots[f.Table]++
	}
	return slots
}

// Ports and families of a Service share a table. If their weights diverge, the first to change gets a copy, and
// they merge once the weights are equal again, even while removals are pending.
func TestServicePortsSplitAndMerge(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	first := six(1, "web", nil).Key
	step := func(four, sixth nodeWeights) {
		t.Helper()
		var problems []Problem
		have, problems = p.Plan(have, modelOf(dual(four, sixth)...), ample)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
	}
	weights := nodeWeights{1: 1, 2: 1}
	step(weights, weights)
	if slots := slotsIn(have); len(slots) != 1 || len(have.NodeTables) != 1 {
		t.Fatalf("slots = %v, want one for four frontends", slots)
	}
	for round := range 6 {
		before := have
		shared := before.Frontends[key(1)].Table
		next := nodeWeights{1: 1, forwarding.NodeID(2 + round%2): 1, 3: uint32(round + 1)}
		step(weights, next)
		if slots := slotsIn(have); len(slots) != 2 || slots[shared] != 2 {
			t.Fatalf("round %d: slots = %v, want two, each for two families", round, slots)
		}
		if have.NodeTables[shared] != before.NodeTables[shared] {
			t.Fatalf("round %d: the table of unchanged frontends was modified", round)
		}
		for i, row := range *have.NodeTables[have.Frontends[first].Table] {
			old := (*before.NodeTables[shared])[i]
			if !succeeds(old, row) {
				t.Fatalf("round %d: row %d changed from %+v to %+v", round, i, old, row)
			}
		}
		step(next, next)
		if slots := slotsIn(have); len(slots) != 1 || slots[shared] != 4 {
			t.Fatalf("round %d: slots = %v, want only %d", round, slots, shared)
		}
		weights = next
	}
}

// succeeds reports whether a row retains its former owner and its history except the oldest entry.
func succeeds(old, row forwarding.Row) bool {
	if row.Primary == old.Primary {
		return row == old
	}
	if row.History == 0 || row.Chain[0] != old.Primary {
		return false
	}
	for _, node := range old.Chain[:min(int(old.History), forwarding.ChainLength-1)] {
		if node != row.Primary && node != row.Chain[1] && node != row.Chain[2] {
			return false
		}
	}
	return true
}

// apart returns a State with a table and history per family of a Service.
func apart(t *testing.T, four, sixth []nodeWeights) *forwarding.State {
	t.Helper()
	have := forwarding.NewState()
	for i, history := range [][]nodeWeights{four, sixth} {
		service := fmt.Sprint(i)
		p := NewPlanner(have)
		for _, weights := range history {
			var frontends []model.Frontend
			for _, f := range dual(weights, weights) {
				if f.Key.VIP.Is6() == (i == 1) {
					f.Service.Name = service
					frontends = append(frontends, f)
				}
			}
			m := modelOf(frontends...)
			m.Nodes = append(m.Nodes, nodeWithID(4))
			next, _ := p.Plan(have, m, ample)
			for key, f := range have.Frontends {
				if _, found := next.Frontends[key]; !found {
					next.Frontends[key], next.NodeTables[f.Table], next.VIPs[key.VIP] = f, have.NodeTables[f.Table], struct{}{}
				}
			}
			have = next
		}
	}
	if slots := slotsIn(have); len(slots) != 2 {
		t.Fatalf("slots = %v, want two; the test case is invalid", slots)
	}
	return have
}

// Separate tables of a Service merge only if the rows have room for all former owners and cannot have lost any.
func TestSeparateTablesMerge(t *testing.T) {
	a, b, c, d := nodeWeights{1: 1}, nodeWeights{2: 1}, nodeWeights{3: 1}, nodeWeights{1: 1, 2: 1}
	for name, test := range map[string]struct {
		four, sixth []nodeWeights
		want        int
	}{
		"no change":                       {[]nodeWeights{a}, []nodeWeights{a}, 1},
		"equal changes":                   {[]nodeWeights{a, b}, []nodeWeights{a, b}, 1},
		"different changes":               {[]nodeWeights{b, a}, []nodeWeights{c, a}, 1},
		"one table changed":               {[]nodeWeights{a}, []nodeWeights{b, c, a}, 1},
		"one table may have lost history": {[]nodeWeights{a}, []nodeWeights{{4: 1}, b, c, a}, 2},
		"equal, may have lost history":    {[]nodeWeights{{4: 1}, b, c, a}, []nodeWeights{{4: 1}, b, c, a}, 2},
		"different weights":               {[]nodeWeights{a, d}, []nodeWeights{a, b}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			have := apart(t, test.four, test.sixth)
			m := modelOf(dual(test.four[len(test.four)-1], test.sixth[len(test.sixth)-1])...)
			m.Nodes = append(m.Nodes, nodeWithID(4))
			want, problems := NewPlanner(have).Plan(have, m, ample)
			if slots := slotsIn(want); len(slots) != test.want || len(problems) > 0 {
				t.Fatalf("slots = %v, want %d; problems %v", slots, test.want, problems)
			}
			for key, f := range want.Frontends {
				for i, row := range *have.NodeTables[have.Frontends[key].Table] {
					now := (*want.NodeTables[f.Table])[i]
					for _, node := range row.Chain[:row.History] {
						if node != now.Chain[0] && node != now.Chain[1] && node != now.Chain[2] {
							t.Fatalf("%s: row %d changed from %+v to %+v", key, i, row, now)
						}
					}
				}
			}
		})
	}
}

// A Service whose ports diverge without room retains the shared table until there is room.
func TestNoRoomToSplitOff(t *testing.T) {
	limits := ample
	limits.NodeTables = 1
	filling := nodeWeights{1: podsPerNode, 2: podsPerNode, 3: podsPerNode}
	have := forwarding.NewState()
	p := NewPlanner(have)
	have, problems := advance(t, p, have, modelOf(dual(filling, filling)...), limits)
	if len(problems) > 0 || len(have.Frontends) != 4 {
		t.Fatalf("%d frontends, problems %v", len(have.Frontends), problems)
	}
	parted := modelOf(dual(nodeWeights{1: podsPerNode, 2: podsPerNode, 3: 2 * podsPerNode}, filling)...)
	have, problems = advance(t, p, have, parted, limits)
	if slots := slotsIn(have); slots[1] != 4 {
		t.Errorf("slots = %v, want one for all", slots)
	}
	if len(problems) != 1 || problems[0].Full != forwarding.NodeTables || !strings.Contains(problems[0].Message, "and 1 more") {
		t.Errorf("problems = %v, want one for both ports of the family that cannot be split off", problems)
	}
	limits.NodeTables = 2
	have, problems = advance(t, p, have, parted, limits)
	if slots := slotsIn(have); len(slots) != 2 || len(problems) > 0 {
		t.Errorf("slots = %v, problems = %v, want two slots", slots, problems)
	}
}

func TestOneFamilyIsPlannedInPart(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	var before *model.Model
	var differs *forwarding.Entries
	for _, weights := range []nodeWeights{{1: 1}, {1: 1}, {2: 1}, {1: 1}} {
		m := modelOf(dual(nodeWeights{1: 1}, weights)...)
		var changes *model.Changes
		if before != nil {
			changes = &model.Changes{Since: before, VIPs: []netip.Addr{six(1, "web", nil).Key.VIP}}
		}
		have, differs, _ = p.Replan(MapContent{have, nil}, m, changes, ample)
		before = m
	}
	if differs == nil {
		t.Error("everything was replanned, want a partial plan")
	}
	if slots := slotsIn(have); len(slots) != 1 {
		t.Errorf("slots = %v, want one", slots)
	}
}

func TestLocalServicesShareRemainingTables(t *testing.T) {
	limits := ample
	limits.NodeTables = localReserve
	var all []model.Frontend
	for n := range localReserve - 1 {
		for _, f := range dual(nodeWeights{1: 1}, nodeWeights{1: 1}) {
			f.Local, f.Service.Name = true, fmt.Sprintf("local%d", n)
			f.Key.Port += uint16(n)
			all = append(all, f)
		}
	}
	have, problems := advance(t, NewPlanner(forwarding.NewState()), forwarding.NewState(), modelOf(all...), limits)
	if len(have.NodeTables) != localReserve-1 || len(problems) > 0 {
		t.Errorf("%d node tables, want one for each of %d Services; problems %v", len(have.NodeTables), localReserve-1, problems)
	}
}
