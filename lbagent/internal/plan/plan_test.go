// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/api/flowhash"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

var ample = forwarding.Limits{Frontends: 100, NodeTables: 100, EndpointTables: 100, Endpoints: 100, VIPs: 100, SourceRanges: 100}

const selfID = forwarding.NodeID(1)

func vipNumber(n int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, byte(n)}) }

func endpointNumber(n int) forwarding.Endpoint {
	return forwarding.Endpoint{Address: netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}), Port: 8080}
}

func endpoints(numbers ...int) []forwarding.Endpoint {
	var list []forwarding.Endpoint
	for _, n := range numbers {
		list = append(list, endpointNumber(n))
	}
	return list
}

func frontend(vip int, service string, numbers ...int) model.Frontend {
	f := model.Frontend{
		Key:       forwarding.FrontendKey{VIP: vipNumber(vip), Port: 80, Protocol: forwarding.ProtocolTCP},
		Service:   model.ServiceName{Namespace: "default", Name: service},
		PortName:  "http",
		Weights:   map[forwarding.NodeID]uint32{},
		Endpoints: endpoints(numbers...),
	}
	if len(numbers) > 0 {
		f.Weights[selfID] = uint32(len(numbers))
	}
	return f
}

func nodeWithID(id forwarding.NodeID) model.Node {
	return model.Node{ID: id, Node: forwarding.Node{IPv4: netip.AddrFrom4([4]byte{198, 51, 100, byte(id)})}}
}

// large gives a frontend enough endpoints on three nodes for a table of a full block.
func large(f model.Frontend) model.Frontend {
	f.Weights = map[forwarding.NodeID]uint32{selfID: podsPerNode, 2: podsPerNode, 3: podsPerNode}
	return f
}

func smallest(n int) forwarding.NodeTableSlot {
	return forwarding.NodeTableSlotAt(uint32(forwarding.Rows+(n-1)*minRows), minRows)
}

func modelOf(frontends ...model.Frontend) *model.Model {
	m := &model.Model{Self: forwarding.Self{ID: selfID, IPv4: netip.MustParseAddr("198.51.100.1")}}
	for id := range forwarding.NodeID(3) {
		node := nodeWithID(id + 1)
		node.Name = fmt.Sprintf("node%d", node.ID)
		m.Nodes = append(m.Nodes, node)
	}
	for _, f := range frontends {
		if !slices.ContainsFunc(m.VIPs, func(vip model.VIP) bool { return vip.Address == f.Key.VIP }) {
			m.VIPs = append(m.VIPs, model.VIP{Address: f.Key.VIP, Services: []model.VIPService{{Name: f.Service}}})
		}
		m.Frontends = append(m.Frontends, &f)
	}
	slices.SortFunc(m.VIPs, func(a, b model.VIP) int { return a.Address.Compare(b.Address) })
	slices.SortFunc(m.Frontends, func(a, b *model.Frontend) int { return a.Key.Compare(b.Key) })
	return m
}

func advance(t *testing.T, p *Planner, have *forwarding.State, m *model.Model, limits forwarding.Limits) (*forwarding.State, []Problem) {
	t.Helper()
	want, problems := p.Plan(have, m, limits)
	got := forwarding.Apply(have, forwarding.Diff(have, want))
	if !reflect.DeepEqual(got, want) {
		t.Fatal("the operations do not produce the plan")
	}
	return got, problems
}

func key(vip int) forwarding.FrontendKey { return frontend(vip, "").Key }

func TestPlan(t *testing.T) {
	web := frontend(1, "web", 1, 2)
	web.Weights[2] = 3
	web.Draining = endpoints(9)
	local := frontend(2, "local", 3)
	local.Local = true
	elsewhere := frontend(3, "elsewhere")
	elsewhere.Weights[3] = 1
	empty := frontend(4, "empty")
	m := modelOf(web, local, elsewhere, empty)
	m.VIPs = append(m.VIPs, model.VIP{Address: vipNumber(5)})
	state, problems := advance(t, NewPlanner(forwarding.NewState()), forwarding.NewState(), m, ample)

	if len(problems) != 0 {
		t.Errorf("problems = %v, want none", problems)
	}
	if state.Self != m.Self {
		t.Errorf("Self = %v, want %v", state.Self, m.Self)
	}
	if _, found := state.Nodes[selfID]; found || len(state.Nodes) != 2 {
		t.Errorf("Nodes = %v, want the two others", state.Nodes)
	}
	if len(state.VIPs) != 5 {
		t.Errorf("%d VIPs, want 5 including the reserved one", len(state.VIPs))
	}
	frontends := map[forwarding.FrontendKey]forwarding.Frontend{
		key(1): {ID: 1, Table: smallest(1), Endpoints: 1},
		key(2): {ID: 2, Local: true, Table: smallest(2), Endpoints: 2},
		key(3): {ID: 3, Table: smallest(3)},
		key(4): {ID: 4, Refuses: true},
	}
	if !reflect.DeepEqual(state.Frontends, frontends) {
		t.Errorf("Frontends = %v, want %v", state.Frontends, frontends)
	}
	if len(state.Endpoints) != 4 {
		t.Errorf("Endpoints = %v, want three usable and one draining", state.Endpoints)
	}
	for _, id := range state.EndpointTables[1] {
		if state.Endpoints[id] == endpointNumber(9) {
			t.Fatal("the endpoint table contains a draining endpoint")
		}
	}
	owned := map[forwarding.NodeID]int{}
	for _, row := range *state.NodeTables[smallest(1)] {
		owned[row.Primary]++
	}
	if owned[1]+owned[2] != minRows || owned[2] < owned[1] {
		t.Errorf("rows by node = %v, want two fifths for node 1, three fifths for node 2", owned)
	}
}

func TestFrontendsOfOneServicePortShareTables(t *testing.T) {
	other := frontend(3, "web", 1)
	other.PortName, other.Key.Port = "https", 443
	six := frontend(1, "web")
	six.Key.VIP, six.Weights = netip.MustParseAddr("2001:db8::1"), map[forwarding.NodeID]uint32{2: 1}
	state, _ := advance(t, NewPlanner(forwarding.NewState()), forwarding.NewState(),
		modelOf(frontend(1, "web", 1), frontend(2, "web", 1), other, six), ample)
	first, second := state.Frontends[key(1)], state.Frontends[key(2)]
	if first.Table != second.Table || first.Endpoints != second.Endpoints || first.ID == second.ID {
		t.Errorf("frontends %+v and %+v do not share their tables, or share an id", first, second)
	}
	if third := state.Frontends[other.Key]; third.Table != first.Table || third.Endpoints == first.Endpoints {
		t.Errorf("another port %+v does not share the node table of %+v, or shares its endpoint table", third, first)
	}
	if sixth := state.Frontends[six.Key]; sixth.Table == first.Table {
		t.Errorf("family with different pods shares the table of %+v: %+v", first, sixth)
	}
}

func TestRestartChangesNothing(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	// Use a second generation, so that ids and slots differ from those of a first plan.
	have, _ = advance(t, p, have, modelOf(frontend(1, "a", 1, 2), frontend(2, "b", 3)), ample)
	m := modelOf(frontend(2, "b", 3, 4), frontend(3, "c", 5))
	m.Frontends[0].Weights[2] = 2
	have, _ = advance(t, p, have, m, ample)
	m.Frontends[0].Weights[2] = 1
	have, _ = advance(t, p, have, m, ample)

	want, _ := NewPlanner(have).Plan(have, m, ample)
	if ops := forwarding.Diff(have, want); len(ops) != 0 {
		t.Errorf("a restart produces %d operations, first: %T", len(ops), ops[0])
	}
}

func TestEndpointIDsAreNotReusedSoon(t *testing.T) {
	limits := ample
	limits.Endpoints = 8
	have := forwarding.NewState()
	p := NewPlanner(have)
	idOf := func(n int) forwarding.EndpointID {
		for id, endpoint := range have.Endpoints {
			if endpoint == endpointNumber(n) {
				return id
			}
		}
		return 0
	}
	have, _ = advance(t, p, have, modelOf(frontend(1, "web", 100)), limits)
	var ids []forwarding.EndpointID
	for n := 1; n <= 9; n++ {
		have, _ = advance(t, p, have, modelOf(frontend(1, "web", 100, n)), limits)
		ids = append(ids, idOf(n))
	}
	if idOf(100) != 1 {
		t.Errorf("id of the remaining endpoint = %d, want 1", idOf(100))
	}
	if want := []forwarding.EndpointID{2, 3, 4, 5, 6, 7, 8, 2, 3}; !slices.Equal(ids, want) {
		t.Errorf("ids = %v, want %v", ids, want)
	}
}

func TestVIPThatMovesToAnotherService(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	have, _ = advance(t, p, have, modelOf(frontend(1, "old", 1), frontend(2, "old", 1)), ample)
	shared := have.Frontends[key(2)]
	// The frontend with the lower key moves to another Service; its Service retains the table.
	moved := modelOf(frontend(1, "new", 2), frontend(2, "old", 1))
	restarted, _ := advance(t, NewPlanner(have), have, moved, ample)
	have, _ = advance(t, p, have, moved, ample)
	if stays := have.Frontends[key(2)]; stays != shared {
		t.Errorf("the remaining frontend changed from %+v to %+v", shared, stays)
	}
	if moved := have.Frontends[key(1)]; moved.Table == shared.Table || moved.Endpoints == shared.Endpoints {
		t.Errorf("the changed frontend still uses the tables of the other Service: %+v", moved)
	}
	for vip := 1; vip <= 2; vip++ {
		if f := restarted.Frontends[key(vip)]; f.Table == shared.Table || f.Endpoints == shared.Endpoints {
			t.Errorf("after a restart, VIP %d uses tables that may belong to another: %+v", vip, f)
		}
	}
}

// A replaced table passes on its history, because connections may be with the former owners.
func TestNewTableInheritsHistory(t *testing.T) {
	first, second := frontend(1, "old", 1), frontend(2, "old", 1)
	first.Weights, second.Weights = map[forwarding.NodeID]uint32{2: 1}, map[forwarding.NodeID]uint32{2: 1}
	have := forwarding.NewState()
	have, _ = advance(t, NewPlanner(have), have, modelOf(first, second), ample)

	second.Weights = map[forwarding.NodeID]uint32{3: 1}
	have, _ = advance(t, NewPlanner(have), have, modelOf(frontend(1, "new", 2), second), ample)
	for i, row := range *have.NodeTables[have.Frontends[key(2)].Table] {
		if row.Primary != 3 || row.Chain[0] != 2 {
			t.Fatalf("row %d = %+v, want primary 3 and previous owner 2", i, row)
		}
	}
}

// Service ports with endpoints on the same nodes share a table while their changes are equal.
func TestEqualTablesAreShared(t *testing.T) {
	on := func(nodes ...forwarding.NodeID) map[forwarding.NodeID]uint32 {
		weights := map[forwarding.NodeID]uint32{}
		for _, id := range nodes {
			weights[id] = 1
		}
		return weights
	}
	have := forwarding.NewState()
	p := NewPlanner(have)
	step := func(weights ...map[forwarding.NodeID]uint32) []*forwarding.NodeTable {
		t.Helper()
		var frontends []model.Frontend
		for i := range weights {
			f := frontend(i+1, fmt.Sprint(i+1))
			f.Weights = weights[i]
			frontends = append(frontends, f)
		}
		have, _ = p.Plan(have, modelOf(frontends...), ample)
		var tables []*forwarding.NodeTable
		for i := range weights {
			tables = append(tables, have.NodeTables[have.Frontends[key(i+1)].Table])
		}
		return tables
	}
	if got := step(on(1, 2), on(1, 2), on(2)); got[0] != got[1] || got[0] == got[2] {
		t.Error("equal tables are not shared, or unequal tables are")
	}
	got := step(on(1, 3), on(1, 3), on(1, 3), on(1, 2))
	if got[0] != got[1] {
		t.Error("tables with equal changes are not shared")
	}
	if got[0].Equal(got[2]) {
		t.Error("tables with different histories are equal")
	}
	if later := step(on(1, 3), on(1, 3), on(1, 3), on(1, 2), on(1, 2)); later[3] != later[4] {
		t.Error("a new table is not the equal existing one")
	}
}

func TestPreviousTablesAreForgotten(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	for i := range 4 * minCached {
		f := frontend(1, "web")
		f.Weights = map[forwarding.NodeID]uint32{1: uint32(i + 1), 2: 1}
		have, _ = p.Plan(have, modelOf(f), ample)
		if len(p.cache) > 2*minCached {
			t.Fatalf("%d tables are cached after %d changes", len(p.cache), i+1)
		}
	}
}

func TestPendingSlotsAreNotReused(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	old, _ := p.Plan(have, modelOf(frontend(1, "old", 1)), ample)
	empty, _ := p.Plan(old, modelOf(frontend(1, "old")), ample)
	additions, _ := forwarding.Split(forwarding.Diff(old, empty))
	waiting := forwarding.Apply(old, additions)

	want, _ := p.Plan(waiting, modelOf(frontend(1, "old"), frontend(2, "new", 2)), ample)
	if f := want.Frontends[key(2)]; f.Table == 1 || f.Endpoints == 1 || want.Endpoints[1] == endpointNumber(2) {
		t.Errorf("the new frontend %+v reuses resources in use, endpoints %v", f, want.Endpoints)
	}
}

// After a limit was lowered, ids may exceed it; only the number of frontends counts.
func TestIDsBeyondTheLimit(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	three := modelOf(frontend(1, "a", 1), frontend(2, "b", 2), frontend(3, "c", 3))
	have, _ = advance(t, p, have, three, ample)
	have, _ = advance(t, p, have, modelOf(frontend(2, "b", 2), frontend(3, "c", 3)), ample)

	lowered := forwarding.Limits{Frontends: 2, NodeTables: 3, EndpointTables: 3, Endpoints: 2, VIPs: 3, SourceRanges: 3}
	want, _ := NewPlanner(have).Plan(have, three, lowered)
	if hasFrontend(want, 1) || len(want.Frontends) != 2 {
		t.Errorf("frontends = %v, want those already programmed", want.Frontends)
	}
	for key, f := range want.Frontends {
		if int(f.ID) > lowered.Frontends {
			t.Errorf("%s has id %d above the limit", key, f.ID)
		}
	}
	// A frontend to be removed has freed an id below the limit, but no room yet.
	want, problems := NewPlanner(have).Plan(have, modelOf(frontend(1, "a"), frontend(2, "b", 2)), lowered)
	if hasFrontend(want, 1) {
		t.Error("a frontend was added to a full map")
	}
	checkFull(t, problems, forwarding.Frontends, "a")

	have, _ = advance(t, p, have, modelOf(frontend(3, "c", 3)), ample)
	want, problems = NewPlanner(have).Plan(have, modelOf(frontend(1, "a"), frontend(2, "b")), lowered)
	if !hasFrontend(want, 1) || hasFrontend(want, 2) {
		t.Errorf("frontends = %v, want the one that fits", want.Frontends)
	}
	checkFull(t, problems, forwarding.Frontends, "b")
}

func TestRenamedPortKeepsItsTables(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	have, _ = advance(t, p, have, modelOf(frontend(1, "web", 1)), ample)
	before := have.Frontends[key(1)]
	renamed := frontend(1, "web", 1)
	renamed.PortName = "www"
	have, _ = advance(t, p, have, modelOf(renamed), ample)
	if after := have.Frontends[key(1)]; after != before {
		t.Errorf("the frontend changed from %+v to %+v", before, after)
	}
}

func TestRemovedNodeLeavesTables(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	f := frontend(1, "web", 1)
	f.Weights[2], f.Weights[3] = 1, 1
	m := modelOf(f)
	have, _ = advance(t, p, have, m, ample)
	delete(m.Frontends[0].Weights, 3)
	have, _ = advance(t, p, have, m, ample)
	if !refersTo(have.NodeTables[smallest(1)], 3) {
		t.Fatal("the previous owner is in no chain")
	}
	m.Nodes = m.Nodes[:2]
	have, _ = advance(t, p, have, m, ample)
	if refersTo(have.NodeTables[smallest(1)], 3) {
		t.Error("the table still contains the removed node")
	}
}

func refersTo(table *forwarding.NodeTable, node forwarding.NodeID) bool {
	return slices.ContainsFunc(*table, func(row forwarding.Row) bool {
		return row.Primary == node || slices.Contains(row.Chain[:], node)
	})
}

func TestLimits(t *testing.T) {
	a, b, c := large(frontend(1, "a", 1, 2)), large(frontend(2, "b", 3)), large(frontend(3, "c", 4))
	three := modelOf(a, b, c)
	cases := []struct {
		full  forwarding.Capacity
		limit func(*forwarding.Limits)
	}{
		{forwarding.Frontends, func(l *forwarding.Limits) { l.Frontends = 2 }},
		{forwarding.NodeTables, func(l *forwarding.Limits) { l.NodeTables = 2 }},
		{forwarding.EndpointTables, func(l *forwarding.Limits) { l.EndpointTables = 2 }},
		{forwarding.Endpoints, func(l *forwarding.Limits) { l.Endpoints = 3 }},
		{forwarding.VIPs, func(l *forwarding.Limits) { l.VIPs = 2 }},
	}
	for _, test := range cases {
		t.Run(test.full.String(), func(t *testing.T) {
			limits := ample
			test.limit(&limits)
			empty := forwarding.NewState()
			p := NewPlanner(empty)

			state, problems := advance(t, p, empty, three, limits)
			if len(state.Frontends) != 2 || hasFrontend(state, 3) {
				t.Errorf("frontends = %v, want those of the first two VIPs", state.Frontends)
			}
			checkFull(t, problems, test.full, "c")

			// Programmed frontends precede others regardless of their order.
			p = NewPlanner(empty)
			programmed, _ := advance(t, p, empty, modelOf(b, c), limits)
			state, problems = advance(t, p, programmed, three, limits)
			if len(state.Frontends) != 2 || hasFrontend(state, 1) {
				t.Errorf("frontends = %v, want those already programmed", state.Frontends)
			}
			checkFull(t, problems, test.full, "a")

			// Entries to be removed occupy room until then.
			two := modelOf(large(frontend(1, "a", 1)), c)
			state, _ = advance(t, p, state, two, limits)
			if state, problems = advance(t, p, state, two, limits); len(problems) != 0 || len(state.Frontends) != 2 {
				t.Errorf("after removals: problems %v, frontends %v", problems, state.Frontends)
			}
		})
	}
}

func hasFrontend(state *forwarding.State, vip int) bool {
	_, found := state.Frontends[key(vip)]
	return found
}

func checkFull(t *testing.T, problems []Problem, full forwarding.Capacity, service string) {
	t.Helper()
	if len(problems) == 0 {
		t.Fatal("no problem is reported although the maps are full")
	}
	for _, problem := range problems {
		if problem.Reason != millracev1beta1.ReasonMapFull || problem.Full != full ||
			!strings.Contains(problem.Message, full.String()) {
			t.Errorf("problem = %+v, want reason MapFull and capacity %s", problem, full)
		}
		if problem.Object.Kind == "Service" && problem.Object.Name != service {
			t.Errorf("problem of Service %s, want %s", problem.Object.Name, service)
		}
	}
}

// A programmed Service port that outgrows the limit retains as many endpoints as fit.
func TestGrownBeyondTheLimit(t *testing.T) {
	limits := ample
	limits.Endpoints = 2
	have := forwarding.NewState()
	p := NewPlanner(have)
	have, _ = advance(t, p, have, modelOf(frontend(1, "web", 5)), limits)
	have, problems := advance(t, p, have, modelOf(frontend(1, "web", 3, 4, 5)), limits)
	checkFull(t, problems, forwarding.Endpoints, "web")
	for number, want := range map[int]bool{3: true, 4: false, 5: true} {
		if found := slices.Contains(slices.Collect(maps.Values(have.Endpoints)), endpointNumber(number)); found != want {
			t.Errorf("endpoint %d programmed = %t, want %t", number, found, want)
		}
	}
	if f := have.Frontends[key(1)]; f.Table == 0 || f.Endpoints == 0 {
		t.Errorf("the frontend became %+v", f)
	}
}

// Of two IPv6 frontends with the same hash, the second is programmed after the first was removed.
func TestSameHash(t *testing.T) {
	first, second := frontend(1, "web", 1), frontend(2, "twin", 2)
	first.Key.VIP = netip.MustParseAddr("2001:db8:cafe::10")
	second.Key.VIP, second.Key.Port = netip.MustParseAddr("2001:db8:cafe:0:68d1:a30a:b97f:8372"), 443
	public, seeded := flowhash.Public(), flowhash.Seed{7: 7}.Constants()
	if first.Key.Hash(public) != second.Key.Hash(public) {
		t.Fatalf("hashes %#x and %#x, want equal", first.Key.Hash(public), second.Key.Hash(public))
	}
	both, problems := advance(t, NewPlanner(forwarding.NewState()).SetHash(seeded), forwarding.NewState(), modelOf(first, second), ample)
	if len(both.Frontends) != 2 || len(problems) != 0 {
		t.Errorf("with a seed that avoids the collision: frontends %+v, problems %v", both.Frontends, problems)
	}
	have := forwarding.NewState()
	p := NewPlanner(have)
	for _, m := range []*model.Model{modelOf(first), modelOf(first, second)} {
		var problems []Problem
		have, problems = advance(t, p, have, m, ample)
		if _, found := have.Frontends[first.Key]; !found || len(have.Frontends) != 1 || len(problems) != len(m.Frontends)-1 {
			t.Fatalf("frontends = %+v, problems = %v", have.Frontends, problems)
		}
		if len(problems) == 1 && (problems[0].Object.Name != "twin" || !strings.Contains(problems[0].Message, "[2001:db8:cafe::10]:80/TCP; change the address")) {
			t.Errorf("problem = %+v", problems[0])
		}
	}
	have, problems = advance(t, p, have, modelOf(second), ample)
	if len(have.Frontends) != 0 || len(problems) != 1 {
		t.Errorf("frontends = %+v, problems = %v", have.Frontends, problems)
	}
	have, problems = advance(t, p, have, modelOf(second), ample)
	if _, found := have.Frontends[second.Key]; !found || len(problems) != 0 {
		t.Errorf("frontends = %+v, problems = %v", have.Frontends, problems)
	}
}
