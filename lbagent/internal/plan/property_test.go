// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// TestPlansHold applies a series of plans, some of them partially, with occasional restarts of the planner.
func TestPlansHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := ample
		if rapid.Bool().Draw(t, "narrow") {
			limits = genLimits(t)
		}
		have := forwarding.NewState()
		p := NewPlanner(have)
		// applied is the last plan if it was applied completely.
		var applied *forwarding.State
		var before *model.Model
		for range rapid.IntRange(1, 5).Draw(t, "steps") {
			restarts := rapid.IntRange(0, 3).Draw(t, "restart") == 0
			if restarts {
				p = NewPlanner(have)
			}
			m := genModel(t)
			want, problems := p.Plan(have, m, limits)
			if limits == ample && (len(problems) != 0 || len(want.Frontends) != len(m.Frontends)) {
				t.Fatalf("%d of %d frontends were planned, problems %v", len(want.Frontends), len(m.Frontends), problems)
			}
			if len(want.Frontends) != len(m.Frontends) && len(problems) == 0 {
				t.Fatal("frontends are missing, but no problem is reported")
			}
			checkPlan(t, have, want, m, limits)
			if limits == ample {
				if have == applied && (!restarts || !changesHands(before, m)) {
					checkKept(t, have, want, before, m)
				}
				checkSettled(t, want, m, limits)
			}
			have = checkApply(t, have, want, before, limits)
			applied, before = nil, m
			if reflect.DeepEqual(have, want) {
				applied = have
			}
		}
	})
}

// TestReplansHold compares partial plans with full plans of the same models, including pending removals.
func TestReplansHold(t *testing.T) {
	parts, beside, others, zoned, restricted, full, yields := 0, 0, 0, 0, 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		limits, mostLocal := ample, false
		switch rapid.IntRange(0, 4).Draw(t, "narrow") {
		case 0:
			limits = genLimits(t)
		case 1, 2:
			limits.NodeTables, mostLocal = rapid.IntRange(2, 8).Draw(t, "max tables"), true
		}
		zonal := rapid.Bool().Draw(t, "zonal")
		have := forwarding.NewState()
		p, whole := NewPlanner(have), NewPlanner(have)
		var before *model.Model
		var pending *forwarding.Pending
		for range rapid.IntRange(2, 12).Draw(t, "steps") {
			m := genModel(t)
			for i := range m.Frontends {
				if !zonal {
					m.Frontends[i].Zones = [forwarding.Zones]map[forwarding.NodeID]uint32{}
				}
				if mostLocal && m.Frontends[i].Service.Name != "service0" {
					m.Frontends[i].Local, m.Frontends[i].Shared = true, false
				}
			}
			if before != nil && rapid.IntRange(0, 9).Draw(t, "other nodes") > 0 {
				m = genAlike(t, before, m)
				genNode(t, m)
			}
			held, wanted := have.Clone(), forwarding.NewState()
			if pending != nil {
				wanted = pending.Wanted.Clone()
			}
			want, differs, problems := p.Replan(MapContent{have, pending}, m, changesSince(before, m), limits)
			if !reflect.DeepEqual(have, held) || pending != nil && !reflect.DeepEqual(pending.Wanted, wanted) {
				t.Fatal("a plan overwrote a State that is still in use")
			}
			same, sameProblems := whole.Plan(have, m, limits)
			if !reflect.DeepEqual(want, same) || !slices.Equal(troubled(problems), troubled(sameProblems)) {
				t.Fatalf("partial %t: plan %+v, want %+v; problems %v, want %v", differs != nil, want, same, problems, sameProblems)
			}
			schedule := forwarding.NewScheduleOf(have, want, differs)
			ops := opsOf(forwarding.NewScheduleOf(have, want, differs))
			if all := forwarding.Diff(have, want); len(ops) != len(all) || len(all) > 0 && !reflect.DeepEqual(ops, all) {
				t.Fatalf("changes %+v: the partial diff differs: %v, want %v", differs, ops, all)
			}
			if differs != nil {
				parts++
				if plansFrontend(want, differs, func(f forwarding.Frontend) bool { return f.Zones != [forwarding.Zones]forwarding.NodeTableSlot{} }) {
					zoned++
				}
				if plansFrontend(want, differs, func(f forwarding.Frontend) bool { return f.Ranges != 0 && f.Ranges != forwarding.NoSources }) {
					restricted++
				}
				if !slices.Equal(m.Nodes, before.Nodes) {
					others++
				}
				if len(problems) > 0 {
					full++
				}
				if slices.ContainsFunc(problems, func(p Problem) bool { return p.yields }) {
					yields++
				}
				if pending != nil && len(pending.Entries.Endpoints)+len(pending.Entries.Frontends) > 0 {
					beside++
				}
			}
			pending = nil
			switch rapid.IntRange(0, 9).Draw(t, "interrupted") {
			case 0:
				have = forwarding.Apply(have, ops[:rapid.IntRange(0, len(ops)).Draw(t, "done")])
			case 1, 2, 3, 4:
				done := schedule.Add(succeed).Done
				done = append(done, schedule.Remove(succeed, func(forwarding.Op) bool { return rapid.Bool().Draw(t, "due") }).Done...)
				if pending = schedule.Pending(); len(done) > 0 {
					have = forwarding.Apply(have, done)
				}
			default:
				have = want
			}
			before = m
		}
	})
	t.Logf("%d partial plans: %d with pending removals, %d with other nodes, %d with zones, %d with source ranges, %d over the limits, %d of these over the limit of Local tables",
		parts, beside, others, zoned, restricted, full, yields)
	if min(parts, beside, others, restricted) == 0 {
		t.Error("one kind of plan was never generated")
	}
}

// troubled returns the objects with problems without the lacking capacity, which may differ once others have
// taken more.
func troubled(problems []Problem) []model.ObjectReference {
	var objects []model.ObjectReference
	for _, p := range problems {
		objects = append(objects, p.Object)
	}
	return slices.Compact(objects)
}

func plansFrontend(want *forwarding.State, part *forwarding.Entries, is func(forwarding.Frontend) bool) bool {
	return slices.ContainsFunc(part.Frontends, func(key forwarding.FrontendKey) bool { return is(want.Frontends[key]) })
}

func opsOf(schedule *forwarding.Schedule) []forwarding.Op {
	always := func(forwarding.Op) bool { return true }
	return slices.Concat(schedule.Add(succeed).Done, schedule.Remove(succeed, always).Done)
}

func succeed(forwarding.Op) error { return nil }

func changesSince(before, m *model.Model) *model.Changes {
	if before == nil {
		return nil
	}
	changes := &model.Changes{Since: before}
	vipOf := func(m *model.Model, address netip.Addr) []model.VIP {
		return slices.DeleteFunc(slices.Clone(m.VIPs), func(vip model.VIP) bool { return vip.Address != address })
	}
	for vip := 1; vip <= vips; vip++ {
		address := genVIP(vip)
		if len(vipOf(m, address)) != len(vipOf(before, address)) ||
			!slices.EqualFunc(m.FrontendsOf(address), before.FrontendsOf(address), func(a, b *model.Frontend) bool {
				return reflect.DeepEqual(a, b)
			}) {
			changes.VIPs = append(changes.VIPs, address)
		}
	}
	return changes
}

// The id of a frontend that waits for removal is not reallocated, not even by a partial plan.
func TestPendingFrontendKeepsItsID(t *testing.T) {
	limits := ample
	limits.Frontends = 4
	have := forwarding.NewState()
	p := NewPlanner(have)
	var before *model.Model
	parts := 0
	plan := func(pending *forwarding.Pending, frontends ...model.Frontend) (*forwarding.Schedule, *forwarding.State) {
		m := modelOf(frontends...)
		want, differs, problems := p.Replan(MapContent{have, pending}, m, changesSince(before, m), limits)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		if differs != nil {
			parts++
		}
		before = m
		return forwarding.NewScheduleOf(have, want, differs), want
	}
	a, b, c, d, e := frontend(1, "a", 1), frontend(2, "b", 1), frontend(3, "c", 1), frontend(4, "d", 1), frontend(1, "e", 1)
	// Ids are allocated round-robin: the next one after d is b's.
	for _, frontends := range [][]model.Frontend{{a, b, c, d}, {b, c}, {b, c, d}, {b, c, d}} {
		_, have = plan(nil, frontends...)
	}
	if last, next := have.Frontends[d.Key].ID, have.Frontends[b.Key].ID; next != last+1 {
		t.Fatalf("d has id %d, b has id %d: the test case is invalid", last, next)
	}
	schedule, _ := plan(nil, c, d)
	schedule.Add(succeed)
	_, want := plan(schedule.Pending(), e, c, d)
	if parts < 3 {
		t.Fatalf("only %d partial plans", parts)
	}
	if got, previous := want.Frontends[e.Key].ID, have.Frontends[b.Key].ID; got == previous || got == 0 {
		t.Errorf("the new frontend has id %d, which the pending removal still uses", got)
	}
}
