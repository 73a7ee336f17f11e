// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// replanned is a planner whose plan of three Services is applied.
type replanned struct {
	*Planner
	limits forwarding.Limits
	before func(m *model.Model)
	model  *model.Model
}

func newReplanned(t *testing.T, limits forwarding.Limits, before func(m *model.Model)) *replanned {
	r := &replanned{Planner: NewPlanner(forwarding.NewState()), limits: limits, before: before}
	r.model = r.services()
	have, _ := advance(t, r.Planner, forwarding.NewState(), r.model, limits)
	advance(t, r.Planner, have, r.model, limits)
	return r
}

func (r *replanned) services() *model.Model {
	m := modelOf(large(frontend(1, "first", 1)), large(frontend(2, "second", 2)), large(frontend(3, "third", 3)))
	m.Zones = []string{"a", "b"}
	if r.before != nil {
		r.before(m)
	}
	return m
}

// change plans a model with changes of some VIPs and reports whether the plan was partial.
func (r *replanned) change(m *model.Model, vips ...netip.Addr) (inPart bool, problems []Problem) {
	_, differs, problems := r.Replan(MapContent{State: r.last.want}, m, &model.Changes{Since: r.model, VIPs: vips}, r.limits)
	r.model = m
	return differs != nil, problems
}

func reachElsewhere(f *model.Frontend) {
	f.Weights = map[forwarding.NodeID]uint32{selfID: 2 * podsPerNode, 2: podsPerNode, 3: podsPerNode}
}

func TestReplanInPart(t *testing.T) {
	full, narrow, few := ample, ample, ample
	full.Frontends, narrow.NodeTables, few.EndpointTables = 2, 2, 2
	zonal := func(m *model.Model) {
		m.Frontends[0].Zones[0] = map[forwarding.NodeID]uint32{selfID: 1}
		m.Frontends[0].Zones[1] = map[forwarding.NodeID]uint32{2: 1}
	}
	admits := func(prefix string) func(m *model.Model) {
		return func(m *model.Model) {
			m.Frontends[0].Restricted, m.Frontends[0].Sources = true, []netip.Prefix{netip.MustParsePrefix(prefix)}
		}
	}
	// Two Services use two tables, and an eighth is reserved: a Local Service gets a table if the limit is
	// four, but not if it is three.
	four, three := ample, ample
	four.NodeTables, three.NodeTables = 4, 3
	local := func(m *model.Model) { m.Frontends[0].Local = true }
	grows := func(m *model.Model) {
		for id := range forwarding.NodeID(5) {
			m.Frontends[1].Weights[4+id] = podsPerNode
		}
	}
	moves := func(service int) func(m *model.Model) {
		return func(m *model.Model) { reachElsewhere(m.Frontends[service]) }
	}
	for name, test := range map[string]struct {
		limits        forwarding.Limits
		before, after func(m *model.Model)
		vip           int
		want          bool
	}{
		"with a zonal frontend":                      {limits: ample, before: zonal, after: moves(1), vip: 2, want: true},
		"zonal frontend":                             {limits: ample, before: zonal, after: moves(0), vip: 1, want: true},
		"zones over capacity":                        {limits: narrow, before: zonal, after: moves(1), vip: 2},
		"restricted frontend":                        {limits: ample, before: admits("203.0.113.0/24"), after: moves(0), vip: 1, want: true},
		"changed source ranges":                      {limits: ample, before: admits("203.0.113.0/24"), after: admits("198.51.100.0/24"), vip: 1},
		"with a frontend over capacity":              {limits: full, after: moves(0), vip: 1, want: true},
		"frontend over capacity":                     {limits: full, after: moves(2), vip: 3, want: true},
		"endpoint table over capacity":               {limits: few, after: moves(2), vip: 3, want: true},
		"endpoint table no longer required":          {limits: few, after: func(m *model.Model) { m.Frontends[2].Endpoints = nil }, vip: 3},
		"with a Local frontend":                      {limits: four, before: local, after: moves(1), vip: 2, want: true},
		"Local frontend":                             {limits: four, before: local, after: moves(0), vip: 1, want: true},
		"table of a Local frontend over capacity":    {limits: four, before: local, after: func(m *model.Model) { local(m); grows(m) }, vip: 2},
		"with a Local frontend without a table":      {limits: three, before: local, after: moves(1), vip: 2, want: true},
		"Local frontend without a table":             {limits: three, before: local, after: moves(0), vip: 1, want: true},
		"table available for a Local frontend again": {limits: three, before: local, after: func(m *model.Model) { m.Frontends[1].Weights = nil }, vip: 2},
		"another frontend over capacity":             {limits: full, after: func(m *model.Model) { m.Frontends[2].PortName = "other" }, vip: 3, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReplanned(t, test.limits, test.before)
			m := r.services()
			test.after(m)
			if got, problems := r.change(m, vipNumber(test.vip)); got != test.want {
				t.Errorf("partial plan = %t, want %t; problems %v", got, test.want, problems)
			}
		})
	}
}

// A frontend over capacity is programmed after another was removed, although its VIP has not changed.
func TestReplanAfterRoom(t *testing.T) {
	full := ample
	full.Frontends = 2
	r := newReplanned(t, full, nil)
	m := r.services()
	m.Frontends, m.VIPs = m.Frontends[1:], m.VIPs[1:]
	if inPart, problems := r.change(m, vipNumber(1)); !inPart || len(problems) != 1 {
		t.Errorf("partial plan = %t, problems %v; want true and one", inPart, problems)
	}
	if inPart, problems := r.change(m); inPart || len(problems) > 0 {
		t.Errorf("next: partial plan = %t, problems %v; want false and none", inPart, problems)
	}
	if _, found := r.last.want.Frontends[key(3)]; !found {
		t.Error("the frontend that was over capacity is still missing")
	}
}
