// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var errRefused = errors.New("refused")

// kernel applies operations to a State, rejects some, and checks completeness after each.
type kernel struct {
	t       *rapid.T
	state   *State
	refuses func(Op) bool
	refused []Op
}

func (k *kernel) do(op Op) error {
	if k.refuses(op) {
		k.refused = append(k.refused, op)
		return fmt.Errorf("%T: %w", op, errRefused)
	}
	k.state = Apply(k.state, []Op{op})
	if err := incomplete(k.state); err != nil {
		k.t.Fatalf("after %T: %v", op, err)
	}
	return nil
}

func always(Op) bool { return true }

// Failed operations leave all frontends complete and affect only dependent operations; a retry without failures
// reaches the wanted state.
func TestScheduleWithFailures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, want := genState(t), genState(t)
		k := &kernel{t: t, state: have, refuses: func(Op) bool {
			return rapid.IntRange(0, 7).Draw(t, "refused") == 0
		}}
		schedule := NewSchedule(have, want)
		added := schedule.Add(k.do)
		removed := schedule.Remove(k.do, always)
		if failed := len(added.Failed) + len(added.Unclosed) + len(removed.Failed); failed != len(k.refused) {
			t.Fatalf("%d failures, but %d operations were rejected", failed, len(k.refused))
		}
		checkShut(t, k, have, want, &added)
		all := len(added.Done) + len(removed.Done) + len(added.Failed) + len(removed.Failed) + added.Blocked + removed.Blocked
		if ops := len(Diff(have, want)); all != ops {
			t.Fatalf("%d of %d operations were executed", all, ops)
		}
		compareIndependent(t, k, have, want)

		k.refuses = func(Op) bool { return false }
		rest := NewSchedule(k.state, want)
		rest.Add(k.do)
		rest.Remove(k.do, always)
		if !reflect.DeepEqual(k.state, want) {
			t.Fatalf("after the second run:\n%+v\nwant\n%+v", k.state, want)
		}
	})
}

// checkShut reports frontends that are neither restricted as wanted nor shut.
func checkShut(t *rapid.T, k *kernel, have, want *State, added *Outcome) {
	open := map[FrontendKey]bool{}
	for _, failure := range added.Unclosed {
		open[failure.Op.(PutFrontend).Key] = true
	}
	for key := range Overpermissive(have, want) {
		ranges := k.state.Frontends[key].Ranges
		if shut := ranges == want.Frontends[key].Ranges || ranges == NoSources; shut == open[key] {
			t.Fatalf("%s has source set %d, want %d or the empty set; rejected: %+v", key, ranges, want.Frontends[key].Ranges, k.refused)
		}
	}
}

// compareIndependent checks all objects that do not depend on a rejected operation, determined from the States
// alone.
func compareIndependent(t *rapid.T, k *kernel, have, want *State) {
	touched := map[any]bool{}
	for _, op := range k.refused {
		touched[Written(op)] = true
		if op, is := op.(SetSelf); is {
			touched[op.Self.ID] = true
		}
	}
	// Mark tables that refer to rejected objects, then frontends with such tables.
	spread := func(s *State) {
		for slot, table := range s.EndpointTables {
			touched[slot] = touched[slot] || slices.ContainsFunc(table[:], func(id EndpointID) bool { return touched[id] })
		}
		for slot, table := range s.NodeTables {
			touched[slot] = touched[slot] || slices.ContainsFunc(*table, func(row Row) bool {
				return touched[row.Primary] || slices.ContainsFunc(row.Chain[:], func(id NodeID) bool { return id != 0 && touched[id] })
			})
		}
		for key, frontend := range s.Frontends {
			for _, thing := range referredTo(s, key) {
				touched[key] = touched[key] || touched[thing]
			}
			touched[key] = touched[key] || touched[SelfEntry{}] && frontend.Zones != [Zones]NodeTableSlot{}
			// A frontend uses its zones' tables until it leaves them.
			touched[key] = touched[key] || removesZones(have.Frontends[key], frontend) &&
				slices.ContainsFunc(slotsOf(have.Frontends[key]), func(slot NodeTableSlot) bool { return touched[slot] })
		}
	}
	spread(want)
	for key, frontend := range want.Frontends {
		if !touched[key] && k.state.Frontends[key] != frontend {
			t.Fatalf("%s = %+v, want %+v; rejected: %+v", key, k.state.Frontends[key], frontend, k.refused)
		}
	}
	for slot, table := range want.EndpointTables {
		if !touched[slot] && *k.state.EndpointTables[slot] != *table {
			t.Fatalf("endpoint table %d differs from the wanted table", slot)
		}
	}
	for slot, table := range want.NodeTables {
		if !touched[slot] && !k.state.NodeTables[slot].Equal(table) {
			t.Fatalf("table %d differs from the wanted table", slot)
		}
	}
	for id, node := range want.Nodes {
		if !touched[id] && k.state.Nodes[id] != node {
			t.Fatalf("node %d = %+v, want %+v", id, k.state.Nodes[id], node)
		}
	}
	// A removed frontend retains the objects it refers to until its removal.
	for key := range have.Frontends {
		if _, wanted := want.Frontends[key]; wanted || touched[key] {
			continue
		}
		if _, left := k.state.Frontends[key]; left {
			t.Fatalf("%s was not removed; rejected: %+v", key, k.refused)
		}
	}
	for vip := range have.VIPs {
		_, wanted := want.VIPs[vip]
		_, left := k.state.VIPs[vip]
		inUse := touched[vip]
		for key := range have.Frontends {
			inUse = inUse || key.VIP == vip && touched[key]
		}
		if !wanted && !inUse && left {
			t.Fatalf("VIP %s was not removed; rejected: %+v", vip, k.refused)
		}
	}
}

// Only dependents of removals that are not due are delayed.
func TestScheduleRemovesWhatIsDue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, want := genState(t), genState(t)
		k := &kernel{t: t, state: have, refuses: func(Op) bool { return false }}
		schedule := NewSchedule(have, want)
		schedule.Add(k.do)
		due := map[Op]bool{}
		for _, op := range schedule.Removals() {
			due[op] = rapid.Bool().Draw(t, "due")
		}
		first := schedule.Remove(k.do, func(op Op) bool { return due[op] })
		second := schedule.Remove(k.do, always)
		if first.Err() != nil || second.Blocked > 0 || len(first.Done)+len(second.Done) != len(schedule.Removals()) {
			t.Fatalf("%d and %d of %d removals were executed, %d blocked", len(first.Done), len(second.Done), len(due), second.Blocked)
		}
		if !reflect.DeepEqual(k.state, want) {
			t.Fatalf("after the removals:\n%+v\nwant\n%+v", k.state, want)
		}
	})
}

func TestOutcomeErr(t *testing.T) {
	if err := (&Outcome{Blocked: 3}).Err(); err != nil {
		t.Errorf("error %v although no operation failed", err)
	}
	many := &Outcome{Blocked: 3}
	for range 7 {
		many.Failed = append(many.Failed, Failure{Err: errRefused})
	}
	text := strings.Repeat("refused\n", 5) + "and 2 more operations failed\n3 operations wait for failed ones"
	if err := many.Err(); !errors.Is(err, errRefused) || err.Error() != text {
		t.Errorf("error %q, want %q", err, text)
	}
}

func TestScheduleForwards(t *testing.T) {
	first := FrontendKey{VIP: netip.MustParseAddr("203.0.113.1"), Port: 80, Protocol: ProtocolTCP}
	second := FrontendKey{VIP: netip.MustParseAddr("203.0.113.2"), Port: 80, Protocol: ProtocolTCP}
	alone := NewState()
	alone.Self = Self{ID: 1, IPv4: netip.MustParseAddr("198.51.100.1")}
	idle := alone.Clone()
	idle.Nodes[2] = Node{IPv4: netip.MustParseAddr("198.51.100.2")}
	idle.Nodes[3] = Node{IPv4: netip.MustParseAddr("198.51.100.3")}
	full := idle.Clone()
	for i, key := range []FrontendKey{first, second} {
		full.VIPs[key.VIP] = struct{}{}
		full.Frontends[key] = Frontend{ID: FrontendID(i + 1), Table: NodeTableSlot(i + 1)}
		table := NewNodeTable()
		for row := range *table {
			(*table)[row].Primary = NodeID(i + 2)
		}
		full.NodeTables[NodeTableSlot(i+1)] = table
	}
	is := func(kind string) func(Op) bool {
		return func(op Op) bool { return fmt.Sprintf("%T", op) == "forwarding."+kind }
	}
	for name, test := range map[string]struct {
		have, want *State
		fails      func(Op) bool
		forwards   bool
	}{
		"all operations succeed":                    {NewState(), full, is(""), true},
		"no other node, no frontend":                {NewState(), alone, is(""), true},
		"own entry fails":                           {NewState(), alone, is("SetSelf"), false},
		"own entry fails, all others succeed":       {NewState(), full, is("SetSelf"), false},
		"other nodes fail":                          {NewState(), idle, is("PutNode"), false},
		"one of two other nodes fails, no frontend": {NewState(), idle, func(op Op) bool { return Written(op) == NodeID(3) }, true},
		"one node and its dependents fail":          {NewState(), full, func(op Op) bool { return Written(op) == NodeID(3) }, true},
		"one frontend fails":                        {NewState(), full, func(op Op) bool { return Written(op) == second }, true},
		"one VIP fails":                             {NewState(), full, func(op Op) bool { return Written(op) == second.VIP }, true},
		"all frontends fail":                        {NewState(), full, is("PutFrontend"), false},
		"all VIPs fail":                             {NewState(), full, is("PutVIP"), false},
		"all tables fail":                           {NewState(), full, is("PutRows"), false},
		"nothing":                                   {NewState(), full, always, false},
		"all operations fail, maps are complete":    {full, full, always, true},
		"removals fail, maps of a previous agent":   {full, alone, isRemoval, true},
	} {
		schedule := NewSchedule(test.have, test.want)
		do := func(op Op) error {
			if test.fails(op) {
				return errRefused
			}
			return nil
		}
		schedule.Add(do)
		schedule.Remove(do, always)
		if got := schedule.Forwards(); got != test.forwards {
			t.Errorf("%s: Forwards = %t, want %t", name, got, test.forwards)
		}
	}
	if NewSchedule(NewState(), full).Forwards() {
		t.Error("Forwards is true before any operation was executed")
	}
}
