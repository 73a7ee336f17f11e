// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// disturbance is a kind of fault injected into a story.
type disturbance string

const (
	oneFails disturbance = "one fails"
	// restFails: all writes from one on fail, until the story ends.
	restFails disturbance = "it and all after it fail"
	// killed: the agent is killed before a write, and another one started.
	killed disturbance = "the agent is killed there"
)

var errKilled = errors.New("killed")

// saboteur injects the fault at the k-th write of a story.
type saboteur struct {
	what   disturbance
	k      int
	writes int
	over   bool
	// killed is true until another agent is started.
	killed bool
}

func (s *saboteur) fails() bool {
	if s.over || s.killed {
		return s.killed
	}
	s.writes++
	s.killed = s.what == killed && s.writes == s.k
	return s.killed || s.what == oneFails && s.writes == s.k || s.what == restFails && s.writes >= s.k
}

// TestStoriesWithFailingWrites repeats each story with a different failing write each time. The witness
// checks every moment, and once writes succeed, maps and routes must equal those of the undisturbed story.
func TestStoriesWithFailingWrites(t *testing.T) {
	for _, s := range readStories(t) {
		t.Run(s.name, func(t *testing.T) {
			play := func(t *testing.T, d disturbance, k int) (*outcome, int) {
				n, by := newNode(t), &saboteur{what: d, k: k}
				n.fails = func(string) bool {
					failed := by.fails()
					if by.killed {
						by.killed = false
						panic(errKilled)
					}
					return failed
				}
				return playDisturbed(t, newPlayer(s, n), by), by.writes
			}
			undisturbed, writes := play(t, "", 0)
			for _, d := range []disturbance{oneFails, restFails, killed} {
				for k := range writes {
					t.Run(fmt.Sprintf("%s/%d", d, k+1), func(t *testing.T) {
						end, _ := play(t, d, k+1)
						undisturbed.compare(t, end)
					})
				}
			}
		})
	}
}

// playDisturbed plays a story with faults, then lets all writes succeed, and returns the outcome.
func playDisturbed(t *testing.T, p *player, by *saboteur) *outcome {
	t.Helper()
	p.loose = true
	p.play(t, p.withoutLooking())
	by.over = true
	if err := p.settle(); err != nil {
		t.Fatal(err)
	}
	state, err := p.node.read()
	if err := errors.Join(err, p.witness.err); err != nil {
		t.Fatalf("after the story: %v", err)
	}
	o := outcomeOf(state, p.witness.model)
	o.Routes, o.Targets = p.node.want.Routes, p.node.targets
	return o
}

// withoutLooking returns the commands that change state; the output of the others depends on the faults.
func (p *player) withoutLooking() map[string]func([]string) error {
	commands := p.commands()
	nothing := func([]string) error { return nil }
	for _, name := range []string{"fail", "heal", "maps", "routes", "status", "writes", "cmp"} {
		commands[name] = nothing
	}
	commands["pass"] = func([]string) error { return p.survive(func() error { _, err := p.pass(); return err }) }
	commands["settle"] = func([]string) error { return p.survive(p.settle) }
	return commands
}

// survive starts another agent if do's agent is killed.
func (p *player) survive(do func() error) (err error) {
	defer func() {
		switch cause := recover(); cause {
		case nil:
		case errKilled:
			if err = p.startAgent(p.loop.maps.Limits); err == nil {
				err = do()
			}
		default:
			panic(cause)
		}
	}()
	return do()
}

// outcome is the final state of a story: forwarding and announcements by content, without history that a
// fault may change, such as former owners of rows.
type outcome struct {
	Self      forwarding.Self
	Nodes     map[forwarding.NodeID]forwarding.Node
	VIPs      map[netip.Addr]struct{}
	Pools     []netip.Prefix
	Sources   int
	Frontends map[forwarding.FrontendKey]effect
	Endpoints []string
	Routes    announce.Routes
	Targets   map[forwarding.NodeID]fib.Target
}

type effect struct {
	Entry      forwarding.Frontend
	Admits     []netip.Prefix
	Owners     *[forwarding.Rows]forwarding.NodeID
	ZoneOwners [forwarding.Zones]*[forwarding.Rows]forwarding.NodeID
	Endpoints  *[forwarding.EndpointRows]forwarding.Endpoint
}

func outcomeOf(state *forwarding.State, m *model.Model) *outcome {
	spreads := map[forwarding.FrontendKey]bool{}
	for i := range m.Frontends {
		spreads[m.Frontends[i].Key] = m.Frontends[i].Spreads() && len(m.Frontends[i].Weights) > 0
	}
	o := &outcome{
		Self: state.Self, Nodes: state.Nodes, VIPs: state.VIPs, Pools: prefixesOf(state, forwarding.Pools),
		Sources: len(state.SourceRanges), Frontends: map[forwarding.FrontendKey]effect{},
	}
	for _, endpoint := range state.Endpoints {
		o.Endpoints = append(o.Endpoints, showEndpoint(endpoint))
	}
	slices.Sort(o.Endpoints)
	for key, frontend := range state.Frontends {
		e := effect{Entry: frontend, Admits: prefixesOf(state, frontend.Ranges)}
		e.Entry.ID, e.Entry.Table, e.Entry.Endpoints = 0, 0, 0
		e.Entry.Zones = [forwarding.Zones]forwarding.NodeTableSlot{}
		if frontend.Ranges != 0 && frontend.Ranges != forwarding.NoSources {
			e.Entry.Ranges = 1
		}
		if spreads[key] {
			e.Owners = owners(state.NodeTables[frontend.Table])
			for zone, slot := range frontend.Zones {
				e.ZoneOwners[zone] = owners(state.NodeTables[slot])
			}
		}
		if frontend.Endpoints != 0 {
			e.Endpoints = &[forwarding.EndpointRows]forwarding.Endpoint{}
			for i, id := range state.EndpointTables[frontend.Endpoints] {
				e.Endpoints[i] = state.Endpoints[id]
			}
		}
		o.Frontends[key] = e
	}
	return o
}

func owners(table *forwarding.NodeTable) *[forwarding.Rows]forwarding.NodeID {
	if table == nil {
		return nil
	}
	owners := &[forwarding.Rows]forwarding.NodeID{}
	for i, row := range *table {
		owners[i] = row.Primary
	}
	return owners
}

func (o *outcome) compare(t *testing.T, other *outcome) {
	t.Helper()
	for _, key := range slices.SortedFunc(maps.Keys(o.Frontends), forwarding.FrontendKey.Compare) {
		if want, got := o.Frontends[key], other.Frontends[key]; !reflect.DeepEqual(want, got) {
			t.Errorf("%s differs from the run without failures: %+v admitting %v, want %+v admitting %v (owners equal: %t, endpoints equal: %t)",
				key, got.Entry, got.Admits, want.Entry, want.Admits,
				reflect.DeepEqual(want.Owners, got.Owners) && reflect.DeepEqual(want.ZoneOwners, got.ZoneOwners), reflect.DeepEqual(want.Endpoints, got.Endpoints))
		}
	}
	if len(o.Frontends) != len(other.Frontends) {
		t.Errorf("%d frontends, but %d without failures", len(other.Frontends), len(o.Frontends))
	}
	want, got := *o, *other
	want.Frontends, got.Frontends = nil, nil
	if !reflect.DeepEqual(want, got) {
		t.Errorf("maps and routes:\n%+v\nwithout failures:\n%+v", got, want)
	}
}
