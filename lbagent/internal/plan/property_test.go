// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

// vips is how many genModel draws from, of which those above four are of IPv6.
const vips = 6

func genVIP(number int) netip.Addr {
	if number <= 4 {
		return vipNumber(number)
	}
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(number)})
}

// genModel draws a model of up to four Services on VIPs of both families. Each
// Service has its own range of endpoints, so that the endpoint of another one is recognised.
func genModel(t *rapid.T) *model.Model {
	m := modelOf()
	m.Nodes = m.Nodes[:1]
	for id := forwarding.NodeID(2); id <= 5; id++ {
		if rapid.Bool().Draw(t, "node") {
			m.Nodes = append(m.Nodes, nodeWithID(id))
		}
	}
	m.Zones = rapid.SampledFrom([][]string{nil, {"", "a"}, {"", "a", "b"}, {"", "b", "c", "d"}}).Draw(t, "zones")
	if len(m.Zones) > 0 {
		m.Self.Zone = forwarding.Zone(rapid.IntRange(0, len(m.Zones)-1).Draw(t, "own zone"))
	}
	for service := range 4 {
		for _, f := range genPorts(t, m, service) {
			six := f
			if rapid.IntRange(0, 3).Draw(t, "families differ") == 0 {
				six.Weights = maps.Clone(f.Weights)
				delete(six.Weights, rapid.SampledFrom(m.Nodes).Draw(t, "without IPv6").ID)
			}
			for _, vip := range rapid.SliceOfNDistinct(rapid.IntRange(1, vips), 0, 3, rapid.ID[int]).Draw(t, "vips") {
				f := f
				if f.Key.VIP = genVIP(vip); f.Key.VIP.Is6() {
					f = six
					f.Key.VIP = genVIP(vip)
				}
				// Of one Service an address may be older than the rest.
				f.MinRows = []int{0, 512, 128}[(service+vip/vips)%3]
				if !slices.ContainsFunc(m.Frontends, func(other *model.Frontend) bool { return other.Key == f.Key }) {
					m.Frontends = append(m.Frontends, &f)
				}
			}
		}
	}
	for vip := 1; vip <= vips; vip++ {
		if rapid.Bool().Draw(t, "reserved") || slices.ContainsFunc(m.Frontends, func(f *model.Frontend) bool { return f.Key.VIP == genVIP(vip) }) {
			m.VIPs = append(m.VIPs, model.VIP{Address: genVIP(vip)})
		}
	}
	slices.SortFunc(m.Frontends, func(a, b *model.Frontend) int { return a.Key.Compare(b.Key) })
	return m
}

// genPorts draws up to three ports of a Service, of which some have the pods of the first one.
func genPorts(t *rapid.T, m *model.Model, service int) []model.Frontend {
	ports := []model.Frontend{genServicePort(t, m, service)}
	for i := range rapid.IntRange(0, 2).Draw(t, "further ports") {
		f := ports[0]
		if rapid.Bool().Draw(t, "other pods") {
			f = genServicePort(t, m, service)
		}
		f.PortName, f.Key.Port = fmt.Sprintf("further%d", i), rapid.SampledFrom([]uint16{80, 443, 8080}).Draw(t, "port")
		ports = append(ports, f)
	}
	return ports
}

func genServicePort(t *rapid.T, m *model.Model, service int) model.Frontend {
	numbers := rapid.SliceOfNDistinct(rapid.IntRange(100*service, 100*service+5), 0, 5, rapid.ID[int]).Draw(t, "endpoints")
	slices.Sort(numbers)
	draining := rapid.IntRange(0, len(numbers)).Draw(t, "draining")
	f := frontend(1, fmt.Sprintf("service%d", service), numbers[draining:]...)
	f.Draining = endpoints(numbers[:draining]...)
	f.Local = rapid.Bool().Draw(t, "local")
	f.Shared = f.Local && rapid.Bool().Draw(t, "shared")
	f.Key.Port = rapid.SampledFrom([]uint16{80, 443}).Draw(t, "port")
	for _, node := range m.Nodes[1:] {
		if weight := rapid.Uint32Range(0, 3).Draw(t, "weight"); weight > 0 {
			f.Weights[node.ID] = weight
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "many pods") == 0 {
		times := rapid.SampledFrom([]uint32{20, 60}).Draw(t, "times")
		for node := range f.Weights {
			f.Weights[node] *= times
		}
	}
	if len(m.Zones) > 0 && !f.Local && rapid.Bool().Draw(t, "zonal") {
		for zone := range m.Zones {
			f.Zones[zone] = f.Weights
			node := rapid.SampledFrom(m.Nodes).Draw(t, "hinted node").ID
			if weight := f.Weights[node]; weight > 0 && rapid.Bool().Draw(t, "hinted") {
				f.Zones[zone] = map[forwarding.NodeID]uint32{node: weight}
			}
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "restricted") == 0 {
		f.Restricted, f.Sources = true, genSources(t)
	}
	f.Living = len(f.Weights) == 0 && (draining > 0 || rapid.Bool().Draw(t, "living elsewhere"))
	return f
}

// genSources draws one of three lists.
func genSources(t *rapid.T) []netip.Prefix {
	half, whole := netip.MustParsePrefix("198.51.100.0/25"), netip.MustParsePrefix("203.0.113.0/24")
	return rapid.SampledFrom([][]netip.Prefix{nil, {half}, {half, whole}}).Draw(t, "sources")
}

func genLimits(t *rapid.T) forwarding.Limits {
	return forwarding.Limits{
		Frontends:      rapid.IntRange(1, 10).Draw(t, "max frontends"),
		NodeTables:     rapid.IntRange(1, 8).Draw(t, "max tables"),
		EndpointTables: rapid.IntRange(1, 8).Draw(t, "max endpoint tables"),
		Endpoints:      rapid.IntRange(1, 25).Draw(t, "max endpoints"),
		VIPs:           rapid.IntRange(1, 5).Draw(t, "max VIPs"),
		SourceRanges:   rapid.IntRange(0, 8).Draw(t, "max source ranges"),
	}
}

// TestPlansHold plays a series of models, each applied in part or as a whole,
// sometimes by a planner that has just started.
func TestPlansHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := ample
		if rapid.Bool().Draw(t, "narrow") {
			limits = genLimits(t)
		}
		have := forwarding.NewState()
		p := NewPlanner(have)
		// applied is the last plan if all of it was written.
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
				t.Fatalf("%d of %d frontends are planned, problems %v", len(want.Frontends), len(m.Frontends), problems)
			}
			if len(want.Frontends) != len(m.Frontends) && len(problems) == 0 {
				t.Fatal("frontends are left out and nothing is said")
			}
			checkPlan(t, have, want, m, limits)
			if limits == ample {
				// A planner that has just started cannot tell whose the tables were.
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

// TestReplansHold plays models that have much in common to a planner that plans in part and to one
// that plans the whole each time. Both must come to the same, also while removals wait.
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
			want, differs, problems := p.Replan(Held{have, pending}, m, changesSince(before, m), limits)
			if !reflect.DeepEqual(have, held) || pending != nil && !reflect.DeepEqual(pending.Wanted, wanted) {
				t.Fatal("a plan was made in a State that is still needed")
			}
			same, sameProblems := whole.Plan(have, m, limits)
			if !reflect.DeepEqual(want, same) || !slices.Equal(troubled(problems), troubled(sameProblems)) {
				t.Fatalf("in part %t: the plan is %+v, not %+v; problems %v and %v", differs != nil, want, same, problems, sameProblems)
			}
			schedule := forwarding.NewScheduleOf(have, want, differs)
			ops := opsOf(forwarding.NewScheduleOf(have, want, differs))
			if all := forwarding.Diff(have, want); len(ops) != len(all) || len(all) > 0 && !reflect.DeepEqual(ops, all) {
				t.Fatalf("beside %+v the plan differs, too: %v, not %v", differs, ops, all)
			}
			if differs != nil {
				parts++
				if plansFrontend(want, differs, func(f forwarding.Frontend) bool { return f.Zones != [forwarding.Zones]forwarding.NodeTableSlot{} }) {
					zoned++
				}
				if plansFrontend(want, differs, func(f forwarding.Frontend) bool { return f.Ranges != 0 && f.Ranges != forwarding.Nobody }) {
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
	t.Logf("%d plans were in part, %d of them beside what waits to be removed, %d with other nodes, %d of zones, %d of source ranges, %d without room for all, of these %d for the tables of Local ones",
		parts, beside, others, zoned, restricted, full, yields)
	if min(parts, beside, others, restricted) == 0 {
		t.Error("a kind of plan was never made")
	}
}

// troubled are the objects with problems, and not what they lack: what lacked one thing may lack
// another one, too, once others have taken more.
func troubled(problems []Problem) []model.ObjectReference {
	var objects []model.ObjectReference
	for _, p := range problems {
		objects = append(objects, p.Object)
	}
	return slices.Compact(objects)
}

// plansFrontend reports whether a part has a frontend of a kind.
func plansFrontend(want *forwarding.State, part *forwarding.Entries, is func(forwarding.Frontend) bool) bool {
	return slices.ContainsFunc(part.Frontends, func(key forwarding.FrontendKey) bool { return is(want.Frontends[key]) })
}

// opsOf are all operations of a schedule.
func opsOf(schedule *forwarding.Schedule) []forwarding.Op {
	always := func(forwarding.Op) bool { return true }
	return slices.Concat(schedule.Add(succeed).Done, schedule.Remove(succeed, always).Done)
}

func succeed(forwarding.Op) error { return nil }

// genAlike draws a model of the nodes before that has some Services as the other model, and the
// rest as before. All frontends of a Service port are of one model, as they have the same
// endpoints.
func genAlike(t *rapid.T, before, other *model.Model) *model.Model {
	m := *before
	m.VIPs, m.Frontends = nil, nil
	for service := range 4 {
		from := before
		if rapid.IntRange(0, 3).Draw(t, "changes") == 0 {
			from = other
		}
		for _, f := range from.Frontends {
			taken := slices.ContainsFunc(m.Frontends, func(of *model.Frontend) bool { return of.Key == f.Key })
			if f.Service.Name != fmt.Sprintf("service%d", service) || taken {
				continue
			}
			if from == other {
				moved := onNodesOf(before, *f)
				f = &moved
			}
			m.Frontends = append(m.Frontends, f)
		}
	}
	slices.SortFunc(m.Frontends, func(a, b *model.Frontend) int { return a.Key.Compare(b.Key) })
	for vip := 1; vip <= vips; vip++ {
		if len(m.FrontendsOf(genVIP(vip))) > 0 || rapid.Bool().Draw(t, "reserved") {
			m.VIPs = append(m.VIPs, model.VIP{Address: genVIP(vip)})
		}
	}
	return &m
}

// genNode has a node of a model go down or come up, join or leave. One that is down has no
// endpoints.
func genNode(t *rapid.T, m *model.Model) {
	id := rapid.SampledFrom([]forwarding.NodeID{0, 0, 2, 3, 4, 5}).Draw(t, "another node")
	if id == 0 {
		return
	}
	m.Nodes = slices.Clone(m.Nodes)
	at := slices.IndexFunc(m.Nodes, func(node model.Node) bool { return node.ID == id })
	switch {
	case at < 0:
		m.Nodes = append(m.Nodes, nodeWithID(id))
	case rapid.Bool().Draw(t, "leaves"):
		m.Nodes = slices.Delete(m.Nodes, at, at+1)
	default:
		m.Nodes[at].Down = !m.Nodes[at].Down
	}
	slices.SortFunc(m.Nodes, func(a, b model.Node) int { return int(a.ID) - int(b.ID) })
	if slices.ContainsFunc(m.Nodes, func(node model.Node) bool { return node.ID == id && !node.Down }) {
		return
	}
	m.Frontends = slices.Clone(m.Frontends)
	for i, f := range m.Frontends {
		without := *f
		without.Weights = withoutNode(f.Weights, id)
		for zone, weights := range f.Zones {
			without.Zones[zone] = withoutNode(weights, id)
		}
		m.Frontends[i] = &without
	}
}

func withoutNode(weights map[forwarding.NodeID]uint32, id forwarding.NodeID) map[forwarding.NodeID]uint32 {
	if weights = maps.Clone(weights); weights != nil {
		delete(weights, id)
	}
	return weights
}

// onNodesOf returns a frontend without weights of nodes and zones that a model does not have.
func onNodesOf(m *model.Model, f model.Frontend) model.Frontend {
	f.Zones = [forwarding.Zones]map[forwarding.NodeID]uint32{}
	f.Weights = maps.Clone(f.Weights)
	maps.DeleteFunc(f.Weights, func(id forwarding.NodeID, _ uint32) bool {
		return !slices.ContainsFunc(m.Nodes, func(node model.Node) bool { return node.ID == id })
	})
	return f
}

// changesSince are the VIPs in which two models differ.
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

// checkPlan compares a plan with its model and with what was before.
func checkPlan(t *rapid.T, have, want *forwarding.State, m *model.Model, limits forwarding.Limits) {
	for key, before := range have.Frontends {
		if after, found := want.Frontends[key]; found && after.ID != before.ID {
			t.Fatalf("%s went from id %d to %d", key, before.ID, after.ID)
		}
	}
	for id, endpoint := range want.Endpoints {
		if before, found := have.Endpoints[id]; found && before != endpoint {
			t.Fatalf("id %d went from endpoint %v to %v", id, before, endpoint)
		}
	}
	ids := map[forwarding.FrontendID]bool{}
	for _, f := range m.Frontends {
		planned, found := want.Frontends[f.Key]
		if !found {
			continue
		}
		if ids[planned.ID] || planned.ID == 0 {
			t.Fatalf("two frontends have the id %d, or it is none", planned.ID)
		}
		ids[planned.ID] = true
		if limits != ample && isBorrowed(want, m, f) {
			continue
		}
		if planned.Table != 0 && planned.Zones == ([forwarding.Zones]forwarding.NodeTableSlot{}) {
			before := have.NodeTables[planned.Table]
			if before == nil {
				before = previousTable(have, m, f)
			}
			for i, row := range *want.NodeTables[planned.Table] {
				if len(f.Weights) > 0 && f.Weights[row.Primary] == 0 {
					t.Fatalf("%s: row %d belongs to node %d, which has no endpoint", f.Key, i, row.Primary)
				}
				if len(f.Weights) == 0 && row != (*before)[i] && exists(m, (*before)[i]) &&
					!joined(have, m, f, i, (*before)[i], row) {
					t.Fatalf("%s: row %d was %+v and is %+v, though there is nobody to change to", f.Key, i, (*before)[i], row)
				}
			}
		}
		checkZones(t, f, planned, want, m.Self.Zone)
		if planned.Endpoints != 0 {
			for i, id := range want.EndpointTables[planned.Endpoints] {
				if !slices.Contains(f.Endpoints, want.Endpoints[id]) {
					t.Fatalf("%s: row %d leads to %v, which is not usable", f.Key, i, want.Endpoints[id])
				}
			}
		}
	}
}

// formerTable is the first that frontends of a frontend's Service port have: a new one is its copy.
func previousTable(have *forwarding.State, m *model.Model, f *model.Frontend) *forwarding.NodeTable {
	for i := range m.Frontends {
		if portOf(m.Frontends[i]) == portOf(f) {
			if slot := have.Frontends[m.Frontends[i].Key].Table; slot != 0 {
				return have.NodeTables[slot]
			}
		}
	}
	return nil
}

// isBorrowed reports whether a frontend has the table of one with other weights.
func isBorrowed(want *forwarding.State, m *model.Model, f *model.Frontend) bool {
	slot := want.Frontends[f.Key].Table
	return slot != 0 && slices.ContainsFunc(m.Frontends, func(other *model.Frontend) bool {
		return want.Frontends[other.Key].Table == slot && !maps.Equal(other.Weights, f.Weights)
	})
}

// changesHands reports whether a frontend goes to another Service port.
func changesHands(before, m *model.Model) bool {
	ports := map[forwarding.FrontendKey]servicePort{}
	for i := range before.Frontends {
		ports[before.Frontends[i].Key] = portOf(before.Frontends[i])
	}
	return slices.ContainsFunc(m.Frontends, func(f *model.Frontend) bool {
		previous, found := ports[f.Key]
		return found && previous != portOf(f)
	})
}

// checkKept finds connections that a row has lost. Where its owner stays, it has all former owners
// that it had; where not, the oldest may have gone.
func checkKept(t *rapid.T, have, want *forwarding.State, before, m *model.Model) {
	ports := map[forwarding.FrontendKey]servicePort{}
	zonal := map[servicePort]bool{}
	for _, m := range []*model.Model{before, m} {
		for i := range m.Frontends {
			f := m.Frontends[i]
			zonal[portOf(f)] = zonal[portOf(f)] || hasZones(f)
		}
	}
	for i := range before.Frontends {
		ports[before.Frontends[i].Key] = portOf(before.Frontends[i])
	}
	for i := range m.Frontends {
		f := m.Frontends[i]
		old, next := have.NodeTables[have.Frontends[f.Key].Table], want.NodeTables[want.Frontends[f.Key].Table]
		// Where rows become one, that has not room for all.
		if old == nil || next == nil || len(*next) < len(*old) || ports[f.Key] != portOf(f) || zonal[portOf(f)] {
			continue
		}
		for number, now := range *next {
			row := (*old)[number*len(*old)/len(*next)]
			owners := append([]forwarding.NodeID{row.Primary}, row.Chain[:row.History]...)
			if now.Primary != row.Primary {
				owners = owners[:min(len(owners), forwarding.ChainLength)]
			}
			kept := append([]forwarding.NodeID{now.Primary}, now.Chain[:now.History]...)
			for _, node := range owners {
				if node != 0 && !slices.Contains(kept, node) && exists(m, forwarding.Row{Primary: node}) {
					t.Fatalf("%s: row %d was %+v and is %+v, without node %d", f.Key, number, row, now, node)
				}
			}
		}
	}
}

// checkShared finds Service ports of one Service with two tables that could be one.
func checkShared(t *rapid.T, want *forwarding.State, m *model.Model) {
	for i := range m.Frontends {
		for j := range m.Frontends[:i] {
			a, b := m.Frontends[i], m.Frontends[j]
			first, second := want.Frontends[a.Key].Table, want.Frontends[b.Key].Table
			if a.Service != b.Service || first == 0 || second == 0 || hasZones(a) || hasZones(b) || len(a.Weights) == 0 {
				continue
			}
			if equal := maps.Equal(a.Weights, b.Weights) && sizeOf(m, a) == sizeOf(m, b); !equal && first == second {
				t.Fatalf("%s and %s have other weights and one table", a.Key, b.Key)
			} else if equal && first != second && canJoin(want.NodeTables[first], want.NodeTables[second]) {
				t.Fatalf("%s and %s could have one table", a.Key, b.Key)
			}
		}
	}
}

// sizeOf is what a node table of a frontend should have: that of the first one of its Service port.
func sizeOf(m *model.Model, of *model.Frontend) table.Size {
	for _, f := range m.Frontends {
		if portOf(f) == portOf(of) {
			return SizeFor(f)
		}
	}
	return SizeFor(of)
}

// canJoin reports whether rows of one table can have the former owners of both, and cannot have
// lost any.
func canJoin(a, b *forwarding.NodeTable) bool {
	for i, row := range *a {
		all, other := map[forwarding.NodeID]bool{}, (*b)[i]
		for _, node := range slices.Concat(row.Chain[:row.History], other.Chain[:other.History]) {
			all[node] = true
		}
		if len(all) > forwarding.ChainLength || max(row.History, other.History) == forwarding.ChainLength {
			return false
		}
	}
	return true
}

// checkZones holds the tables of a frontend's zones against the model.
func checkZones(t *rapid.T, f *model.Frontend, planned forwarding.Frontend, want *forwarding.State, own forwarding.Zone) {
	if planned.Zones == ([forwarding.Zones]forwarding.NodeTableSlot{}) {
		return
	}
	if planned.Zones[own] != planned.Table {
		t.Fatalf("%s: the table of this node's zone %d is %d, its zones have %v", f.Key, own, planned.Table, planned.Zones)
	}
	for zone, slot := range planned.Zones {
		if slot == 0 && len(f.Zones[zone]) > 0 || slot != 0 && f.Zones[zone] == nil {
			t.Fatalf("%s: zone %d has the weights %v and the table %d", f.Key, zone, f.Zones[zone], slot)
		}
		if slot == 0 {
			continue
		}
		if want.NodeTables[slot] == nil {
			t.Fatalf("%s: the table %d of zone %d is not there", f.Key, slot, zone)
		}
		for i, row := range *want.NodeTables[slot] {
			if len(f.Zones[zone]) > 0 && f.Zones[zone][row.Primary] == 0 {
				t.Fatalf("%s: row %d of zone %d belongs to node %d, which is not hinted: %v", f.Key, i, zone, row.Primary, f.Zones[zone])
			}
		}
	}
}

// joined reports whether a row differs from what it was by owners alone that it had in the
// tables of the zones, which a frontend of the same Service port may have left.
func joined(have *forwarding.State, m *model.Model, f *model.Frontend, number int, before, row forwarding.Row) bool {
	var zones []forwarding.NodeTableSlot
	for _, other := range m.Frontends {
		if before := have.Frontends[other.Key]; portOf(other) == portOf(f) {
			zones = append(zones, before.Zones[:]...)
		}
	}
	return row.Primary == before.Primary && !slices.ContainsFunc(row.Chain[:], func(node forwarding.NodeID) bool {
		return node != 0 && !slices.Contains(before.Chain[:], node) &&
			!slices.ContainsFunc(zones, func(slot forwarding.NodeTableSlot) bool {
				return slot != 0 && (*have.NodeTables[slot])[number].Primary == node
			})
	})
}

// exists reports whether all nodes of a row are in the model.
func exists(m *model.Model, row forwarding.Row) bool {
	for _, id := range append(row.Chain[:], row.Primary) {
		if id != 0 && !slices.ContainsFunc(m.Nodes, func(node model.Node) bool { return node.ID == id }) {
			return false
		}
	}
	return true
}

// checkSettled plans the same model once more, from what was planned and by a
// planner that has just started: there is nothing left to do. Once tables of zones have left,
// others may become one.
func checkSettled(t *rapid.T, want *forwarding.State, m *model.Model, limits forwarding.Limits) {
	again, _ := NewPlanner(want).Plan(want, m, limits)
	if len(again.NodeTables) < len(want.NodeTables) {
		want = again
		again, _ = NewPlanner(want).Plan(want, m, limits)
	}
	if ops := forwarding.Diff(want, again); len(ops) != 0 {
		t.Fatalf("planning again makes %d operations, the first is %T", len(ops), ops[0])
	}
	checkShared(t, want, m)
}

// checkApply applies the plan one operation after the other, possibly not to
// the end. Each frontend must at any time lead to what it led to before, to
// what its Service has now, or to what it is to lead to; and no map may hold
// more than it can.
func checkApply(t *rapid.T, have, want *forwarding.State, last *model.Model, limits forwarding.Limits) *forwarding.State {
	ops := forwarding.Diff(have, want)
	done := len(ops)
	if rapid.Bool().Draw(t, "interrupted") {
		done = rapid.IntRange(0, len(ops)).Draw(t, "done")
	}
	state := have
	for i, op := range ops[:done] {
		state = forwarding.Apply(state, []forwarding.Op{op})
		for key, f := range state.Frontends {
			// Until it is written again it follows the Service that it had.
			before := destinationOf(want, have.Frontends[key])
			if want.Frontends[key].Endpoints != have.Frontends[key].Endpoints && !isUnwritten(have, key, last) {
				checkOwner(t, leadsTo(have, key), before)
			}
			if !between(leadsTo(state, key), leadsTo(have, key), before, leadsTo(want, key)) {
				t.Fatalf("after operation %d, %T, %s (%+v, was %+v, will be %+v) leads where it never should",
					i, op, key, f, have.Frontends[key], want.Frontends[key])
			}
		}
		if len(state.Frontends) > limits.Frontends || len(state.VIPs) > limits.VIPs || len(state.Endpoints) > limits.Endpoints ||
			state.NodeTableBlocks() > limits.NodeTables || len(state.EndpointTables) > limits.EndpointTables {
			t.Fatalf("after operation %d, %T, a map holds more than %+v", i, op, limits)
		}
	}
	return state
}

// destination is where a frontend's packets go, without ids and slots.
type destination struct {
	table     *forwarding.NodeTable
	endpoints *[forwarding.EndpointRows]forwarding.Endpoint
}

func leadsTo(s *forwarding.State, key forwarding.FrontendKey) destination {
	return destinationOf(s, s.Frontends[key])
}

func destinationOf(s *forwarding.State, f forwarding.Frontend) (d destination) {
	if f.Table != 0 {
		d.table = s.NodeTables[f.Table]
	}
	if table := s.EndpointTables[f.Endpoints]; table != nil {
		d.endpoints = &[forwarding.EndpointRows]forwarding.Endpoint{}
		for i, id := range table {
			d.endpoints[i] = s.Endpoints[id]
		}
	}
	return d
}

// isUnwritten reports whether a frontend still leads to another Service than that of the last
// model.
func isUnwritten(have *forwarding.State, key forwarding.FrontendKey, last *model.Model) bool {
	to := leadsTo(have, key).endpoints
	return to != nil && last != nil && slices.ContainsFunc(last.Frontends, func(f *model.Frontend) bool {
		return f.Key == key && f.Service.Name != fmt.Sprintf("service%d", serviceNumber(to[0]))
	})
}

// serviceNumber is that of the Service which has an endpoint.
func serviceNumber(e forwarding.Endpoint) int {
	bytes := e.Address.As4()
	return (int(bytes[2])<<8 | int(bytes[3])) / 100
}

// checkOwner reports a destination that has the endpoints of two Services.
func checkOwner(t *rapid.T, have, target destination) {
	if have.endpoints == nil || target.endpoints == nil {
		return
	}
	for i := range target.endpoints {
		if serviceNumber(target.endpoints[i]) != serviceNumber(have.endpoints[i]) {
			t.Fatalf("row %d went from %v to %v of another Service", i, have.endpoints[i], target.endpoints[i])
		}
	}
}

func equalPointed[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// between reports whether each part of a destination is that of one of the
// stages: the tables of a frontend change one after the other.
func between(d destination, stages ...destination) bool {
	return slices.ContainsFunc(stages, func(stage destination) bool { return d.table.Equal(stage.table) }) &&
		slices.ContainsFunc(stages, func(stage destination) bool { return equalPointed(d.endpoints, stage.endpoints) })
}

// The id of a frontend that waits to be removed is not given to another one, also by a plan in
// part.
func TestPendingFrontendKeepsItsID(t *testing.T) {
	limits := ample
	limits.Frontends = 4
	have := forwarding.NewState()
	p := NewPlanner(have)
	var before *model.Model
	parts := 0
	plan := func(pending *forwarding.Pending, frontends ...model.Frontend) (*forwarding.Schedule, *forwarding.State) {
		m := modelOf(frontends...)
		want, differs, problems := p.Replan(Held{have, pending}, m, changesSince(before, m), limits)
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
	// The numbers go round: after that of d comes that of b.
	for _, frontends := range [][]model.Frontend{{a, b, c, d}, {b, c}, {b, c, d}, {b, c, d}} {
		_, have = plan(nil, frontends...)
	}
	if last, next := have.Frontends[d.Key].ID, have.Frontends[b.Key].ID; next != last+1 {
		t.Fatalf("d has the id %d and b %d: the case proves nothing", last, next)
	}
	schedule, _ := plan(nil, c, d)
	schedule.Add(succeed)
	_, want := plan(schedule.Pending(), e, c, d)
	if parts < 3 {
		t.Fatalf("only %d plans were in part", parts)
	}
	if got, previous := want.Frontends[e.Key].ID, have.Frontends[b.Key].ID; got == previous || got == 0 {
		t.Errorf("the new frontend has the id %d, which waits with the former one", got)
	}
}
