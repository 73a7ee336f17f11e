// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

// A Service is programmed, then announced; it is withdrawn, and removed after the delay.
func TestOrderOfAPass(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 2, 2)
	l := newLoop(n, objects)
	mustPass(t, l, start)
	if !n.routes[vipOf(1)] {
		t.Fatalf("not announced: %+v", n.observation.Decisions)
	}
	if at := slices.Index(n.steps, "Set"); at < 0 || slices.Index(n.steps, "PutFrontend") > at {
		t.Errorf("steps = %v, want PutFrontend before Set", n.steps)
	}

	targets := map[forwarding.NodeID]fib.Target{
		2: {Source: netip.MustParseAddr("198.51.100.1"), Destination: netip.MustParseAddr("198.51.100.2")},
	}
	if diff := cmp.Diff(targets, n.targets, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("next hop targets differ: %s", diff)
	}
	if want := map[int][]int{2: {2}}; !cmp.Equal(n.devices, want) {
		t.Errorf("devices of hops = %v, want %v", n.devices, want)
	}

	n.steps = nil
	objects.Services, objects.VIPs, objects.EndpointSlices = nil, nil, nil
	again := mustPass(t, l, start)
	if again != testDelay || !slices.Equal(n.steps, []string{"Set"}) || len(n.routes) != 0 {
		t.Fatalf("next pass in %s, steps %v, routes %v; want only the withdrawal and the next pass in %s", again, n.steps, n.routes, testDelay)
	}
	mustPass(t, l, start.Add(testDelay-time.Millisecond))
	if len(n.state.Frontends) != 1 {
		t.Fatal("the frontend was removed before the delay")
	}
	mustPass(t, l, start.Add(testDelay))
	if len(n.state.Frontends) != 0 || len(n.state.VIPs) != 0 || len(n.state.Endpoints) != 0 || len(n.state.NodeTables) != 0 {
		t.Errorf("remaining entries: %+v", n.state)
	}
}

// Each of several addresses of a family is served and announced separately.
func TestServiceWithTwoVIPs(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 2, 2)
	second := objects.VIPs[0].DeepCopy()
	second.Name, second.Spec.Address = millracev1beta1.VIPName(vipOf(2)), vipOf(2).String()
	objects.VIPs = append(objects.VIPs, second)
	l := newLoop(n, objects)
	mustPass(t, l, start)
	if len(n.state.Frontends) != 2 || !n.routes[vipOf(1)] || !n.routes[vipOf(2)] {
		t.Fatalf("frontends %v, routes %v", n.state.Frontends, n.routes)
	}
	objects.VIPs = []*millracev1beta1.VIP{second}
	mustPass(t, l, start)
	mustPass(t, l, start.Add(testDelay))
	if len(n.state.Frontends) != 1 || n.routes[vipOf(1)] || !n.routes[vipOf(2)] || len(n.state.Endpoints) != 2 {
		t.Errorf("after the removal of one: frontends %v, routes %v, endpoints %v", n.state.Frontends, n.routes, n.state.Endpoints)
	}
}

// A Service that is recreated within the delay is never removed.
func TestRemovalIsForgotten(t *testing.T) {
	n := newNode(t)
	objects, empty := cluster(), cluster()
	addService(objects, 1, false, 1, 0)
	current := objects
	l := newLoop(n, nil)
	l.assembler.Objects = func() *model.Snapshot { return current }
	mustPass(t, l, start)
	current = empty
	mustPass(t, l, start)
	current = objects
	mustPass(t, l, start.Add(testDelay/2))
	current = empty
	mustPass(t, l, start.Add(testDelay/2))
	mustPass(t, l, start.Add(testDelay))
	if len(n.state.Frontends) != 1 {
		t.Error("the frontend was removed before the second delay")
	}
}

// If the speaker cannot listen for routers, routes are withdrawn and entries removed nevertheless.
func TestFailedListen(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 0)
	l := newLoop(n, objects)
	mustPass(t, l, start)
	objects.Services = nil
	n.fails = func(what string) bool { return what == "Set" }
	for i := range 2 {
		if _, err := l.pass(start.Add(time.Duration(i) * testDelay)); !errors.Is(err, errInjected) {
			t.Fatalf("error %v, want the injected error", err)
		}
	}
	if len(n.routes) != 0 || len(n.state.Frontends) != 0 {
		t.Errorf("routes %v, frontends %v; want none", n.routes, n.state.Frontends)
	}
}

// After a failed map write, entries and their routes remain, the condition reports it, and the next pass
// continues.
func TestFailedWrite(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 0)
	l := newLoop(n, objects)
	mustPass(t, l, start)
	addService(objects, 2, false, 1, 0)
	n.fails = func(what string) bool { return what == "PutFrontend" }
	if _, err := l.pass(start); !errors.Is(err, errInjected) {
		t.Fatalf("error %v, want the injected error", err)
	}
	if !n.routes[vipOf(1)] || n.routes[vipOf(2)] {
		t.Errorf("routes = %v, want only that of the first Service", n.routes)
	}
	if !errors.Is(n.observation.ProgramError, errInjected) {
		t.Errorf("ProgramError = %v, want the injected error", n.observation.ProgramError)
	}
	if reason := n.observation.Decisions[1].Reason; reason != announce.ReasonNotProgrammed {
		t.Errorf("reason of the second Service = %q", reason)
	}
	n.fails = func(string) bool { return false }
	mustPass(t, l, start)
	if !n.routes[vipOf(1)] || !n.routes[vipOf(2)] || n.observation.ProgramError != nil {
		t.Errorf("routes %v, error %v after the retry", n.routes, n.observation.ProgramError)
	}
}

// After a failed write only the affected entries are read back, because all maps may take gigabytes and
// seconds.
func TestFailedWriteReadsLittle(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 0)
	l := newLoop(n, objects)
	mustPass(t, l, start)
	dumps := n.dumps
	addService(objects, 2, false, 1, 0)
	n.fails = func(what string) bool { return what == "PutFrontend" }
	for range 3 {
		if _, err := l.pass(start); !errors.Is(err, errInjected) {
			t.Fatalf("error %v, want the injected error", err)
		}
	}
	if n.dumps != dumps {
		t.Errorf("the maps were read %d more times", n.dumps-dumps)
	}
}

// A permanently failing write blocks neither another Service nor the removal of a third one, and never
// withdraws an announced VIP, whose other port serves.
func TestFailedWriteDelaysNoOtherWrite(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 0)
	addService(objects, 3, false, 1, 0)
	l := newLoop(n, objects)
	mustPass(t, l, start)
	objects.Services = objects.Services[:1]
	objects.Services[0] = withPort(objects.Services[0], "other", 443)
	addService(objects, 2, false, 1, 0)
	failed := forwarding.FrontendKey{VIP: vipOf(1), Port: 443, Protocol: forwarding.ProtocolTCP}
	n.refuses = func(op forwarding.Op) bool {
		put, is := op.(forwarding.PutFrontend)
		return is && put.Key == failed
	}
	for i := range 3 {
		if _, err := l.pass(start.Add(time.Duration(i) * testDelay)); !errors.Is(err, errInjected) {
			t.Fatalf("error %v, want the injected error", err)
		}
		if !n.routes[vipOf(1)] || !n.routes[vipOf(2)] || n.routes[vipOf(3)] {
			t.Fatalf("pass %d: routes = %v, want those of the first two Services", i+1, n.routes)
		}
		if !slices.ContainsFunc(n.observation.Problems, func(p model.Problem) bool {
			return p.Reason == millracev1beta1.ReasonProgrammingFailed && strings.Contains(p.Message, failed.String())
		}) {
			t.Errorf("problems = %v, want one for %s", n.observation.Problems, failed)
		}
	}
	for key := range n.state.Frontends {
		if key.VIP == vipOf(3) {
			t.Errorf("%s was not removed", key)
		}
	}
	n.refuses = func(forwarding.Op) bool { return false }
	mustPass(t, l, start.Add(3*testDelay))
	if _, found := n.state.Frontends[failed]; !found || len(n.observation.Problems) > 1 {
		t.Errorf("programmed = %t, problems = %v", found, n.observation.Problems)
	}
}

// An agent that takes over an announced VIP withdraws it for no port that cannot be written; a VIP that was
// programmed in part and not announced is announced only when complete.
func TestFailedWriteAfterRestart(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 0)
	mustPass(t, newLoop(n, objects), start)
	objects.Services[0] = withPort(objects.Services[0], "other", 443)
	addService(objects, 2, false, 1, 0)
	objects.Services[1] = withPort(objects.Services[1], "other", 443)
	n.refuses = func(op forwarding.Op) bool {
		put, is := op.(forwarding.PutFrontend)
		return is && put.Key.Port == 443
	}
	n.routes = map[netip.Addr]bool{}
	if _, err := newLoop(n, objects).pass(start); !errors.Is(err, errInjected) {
		t.Fatalf("error %v, want the injected error", err)
	}
	if !n.routes[vipOf(1)] || n.routes[vipOf(2)] {
		t.Errorf("routes = %v, want only that of the first Service", n.routes)
	}
}

// While the maps can be neither written nor read, routes are unchanged.
func TestUnreadableMaps(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 0)
	l := newLoop(n, objects)
	mustPass(t, l, start)
	sets := n.sets
	addService(objects, 2, false, 1, 0)
	n.fails = func(what string) bool { return what == "PutFrontend" || what == "ReadBack" || what == "Dump" }
	for range 2 {
		if _, err := l.pass(start); !errors.Is(err, errInjected) {
			t.Fatalf("error %v, want the injected error", err)
		}
	}
	if n.sets != sets || !n.routes[vipOf(1)] {
		t.Errorf("%d Sets, then %d; routes %v", sets, n.sets, n.routes)
	}
	if len(n.observation.Decisions) != 1 || n.observation.ProgramError == nil {
		t.Errorf("observation = %+v, want the previous decision and the error", n.observation)
	}
	n.fails = func(string) bool { return false }
	mustPass(t, l, start)
	if !n.routes[vipOf(2)] {
		t.Error("the second Service is not announced after the maps became readable")
	}
}

// Without programs on every uplink no VIP is announced; only a failed attachment is retried.
func TestAttachment(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 0)
	l := newLoop(n, objects)
	attempts := 0
	n.fails = func(what string) bool {
		if what == "Attach" {
			attempts++
		}
		return what == "Attach" && attempts <= 2
	}
	for range 2 {
		if _, err := l.pass(start); !errors.Is(err, errInjected) {
			t.Fatalf("error %v, want the injected error", err)
		}
		if len(n.routes) != 0 {
			t.Fatal("announced although no program is attached")
		}
	}
	mustPass(t, l, start)
	mustPass(t, l, start)
	if attempts != 3 || !n.routes[vipOf(1)] {
		t.Errorf("%d attempts, want 3; routes %v", attempts, n.routes)
	}
	n.uplinks = append(n.uplinks, netdev.Link{Name: "eth1", Index: 3, Ethernet: true})
	mustPass(t, l, start)
	if attempts != 5 || len(n.observation.Interfaces) != 2 || len(n.devices) != 2 {
		t.Errorf("%d attempts, want 5; interfaces %v", attempts, n.observation.Interfaces)
	}
	n.uplinks = nil
	mustPass(t, l, start)
	if len(n.routes) != 0 {
		t.Error("announced although no uplink exists")
	}
}

// A new agent writes no entry of its predecessor again.
func TestRestartWritesNothing(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	for i := range 20 {
		addService(objects, i+1, i%3 == 0, i%4, i%5)
	}
	mustPass(t, newLoop(n, objects), start)
	routes := n.routes
	n.steps, n.routes = nil, map[netip.Addr]bool{}
	mustPass(t, newLoop(n, objects), start)
	if !slices.Equal(n.steps, []string{"Set"}) {
		t.Errorf("steps of the second agent: %v, want Set alone", n.steps)
	}
	if diff := cmp.Diff(routes, n.routes); diff != "" {
		t.Errorf("routes after the restart differ: %s", diff)
	}
}

// One in ten writes fails during random changes and restarts: the stories' witness checks each step, and once
// writes succeed the maps are complete.
func TestFailingWrites(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			n := newNode(t)
			var objects *model.Snapshot
			n.fails = func(string) bool { return random.IntN(10) == 0 }
			n.closed = map[netip.Addr]bool{vipOf(1): true, vipOf(2): true, vipOf(3): true}
			w := newWitness(testDelay)
			n.watch = w.see
			var l *loop
			now := start
			snapshot := func() *model.Snapshot { w.begin(objects, now); return objects }
			for range 60 {
				objects = cluster()
				scatterNodes(objects, random)
				for i := range 12 {
					if random.IntN(3) > 0 {
						addService(objects, i+1, i%2 == 0, random.IntN(3), random.IntN(3))
					}
					if n.closed[vipOf(i+1)] {
						restrict(objects, i+1, random.IntN(4), random.IntN(4))
					}
				}
				scatterEndpoints(objects, random)
				if l == nil || random.IntN(10) == 0 {
					l = newLoop(n, nil)
					l.assembler.Objects = snapshot
					w.restart(l.maps.Have(), l.maps.Limits)
				}
				if _, err := l.pass(now); err != nil && !errors.Is(err, errInjected) {
					t.Fatal(err)
				}
				if w.err != nil {
					t.Fatal(w.err)
				}
				checkFill(t, l)
				now = now.Add(time.Duration(random.IntN(800)) * time.Millisecond)
			}
			n.fails = func(string) bool { return false }
			for i := range 4 {
				mustPass(t, l, now.Add(time.Duration(i)*testDelay))
			}
			checkSettled(t, n, objects)
		})
	}
}

// checkFill checks the incrementally updated fill metrics against the maps.
func checkFill(t *testing.T, l *loop) {
	t.Helper()
	have, fill := l.maps.Have(), l.maps.Usage()
	if have == nil || fill == nil {
		if have != nil || fill != nil {
			t.Errorf("maps known = %t, usage known = %t", have != nil, fill != nil)
		}
	} else if want := have.Usage(); *fill != *want {
		t.Errorf("usage = %+v, but the maps contain %+v", *fill, *want)
	}
}

// checkSettled compares a node's maps with the expected state, except for ids and the history of rows.
func checkSettled(t *testing.T, n *node, objects *model.Snapshot) {
	t.Helper()
	m := model.Build(objects)
	if len(n.state.VIPs) != len(m.VIPs) || len(n.state.Frontends) != len(m.Frontends) {
		t.Errorf("%d VIPs and %d frontends, want %d and %d",
			len(n.state.VIPs), len(n.state.Frontends), len(m.VIPs), len(m.Frontends))
	}
	endpoints := map[forwarding.Endpoint]bool{}
	for _, frontend := range m.Frontends {
		for _, endpoint := range slices.Concat(frontend.Endpoints, frontend.Draining) {
			endpoints[endpoint] = true
		}
	}
	have := map[forwarding.Endpoint]bool{}
	for _, endpoint := range n.state.Endpoints {
		have[endpoint] = true
	}
	for i := range m.Frontends {
		key, sources := m.Frontends[i].Key, map[netip.Prefix]bool{}
		for source := range n.state.SourceRanges {
			if source.Set == n.state.Frontends[key].Ranges {
				sources[source.Prefix] = true
			}
		}
		if len(sources) != len(m.Frontends[i].Sources) {
			t.Errorf("%s admits %v, want %v", key, sources, m.Frontends[i].Sources)
		}
		for _, prefix := range m.Frontends[i].Sources {
			if !sources[prefix] {
				t.Errorf("%s admits %v, want %v", key, sources, m.Frontends[i].Sources)
			}
		}
	}
	if diff := cmp.Diff(endpoints, have, cmp.Comparer(func(a, b forwarding.Endpoint) bool { return a == b })); diff != "" {
		t.Errorf("endpoints differ: %s", diff)
	}
}

// A Service that does not fit is skipped and reported, and programmed once another is deleted.
func TestFullMap(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 0)
	l := newLoop(n, objects)
	l.maps.Limits.Frontends = 1
	mustPass(t, l, start)
	addService(objects, 2, false, 1, 0)
	mustPass(t, l, start)
	if !slices.ContainsFunc(n.observation.Problems, func(p model.Problem) bool {
		return p.Reason == millracev1beta1.ReasonMapFull
	}) {
		t.Fatalf("problems = %v, want %s", n.observation.Problems, millracev1beta1.ReasonMapFull)
	}
	if !n.routes[vipOf(1)] || n.routes[vipOf(2)] {
		t.Fatalf("routes = %v, want only that of the first Service", n.routes)
	}
	objects.Services, objects.VIPs = objects.Services[1:], objects.VIPs[1:]
	now := start
	for range 10 {
		again := mustPass(t, l, now)
		if again == 0 {
			break
		}
		now = now.Add(again)
	}
	if !n.routes[vipOf(2)] || len(n.observation.Problems) != 0 {
		t.Errorf("routes %v, problems %v; want the second Service announced", n.routes, n.observation.Problems)
	}
}

// A VIP of policy Cluster remains announced only during a short gap of its endpoints.
func TestShortGapOfEndpoints(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 1)
	l := newLoop(n, objects)
	l.routes.UnreadyDelay = 2 * time.Second
	mustPass(t, l, start)
	ready := objects.EndpointSlices
	objects.EndpointSlices = nil
	if again := mustPass(t, l, start); !n.routes[vipOf(1)] || again == 0 || again > l.routes.UnreadyDelay {
		t.Errorf("routes = %v, next pass in %s", n.routes, again)
	}
	objects.EndpointSlices = ready
	mustPass(t, l, start.Add(l.routes.UnreadyDelay-1))
	objects.EndpointSlices = nil
	mustPass(t, l, start.Add(l.routes.UnreadyDelay))
	if !n.routes[vipOf(1)] {
		t.Error("the route was withdrawn during a short gap")
	}
	mustPass(t, l, start.Add(2*l.routes.UnreadyDelay))
	if n.routes[vipOf(1)] {
		t.Error("announced without endpoints")
	}
	objects.EndpointSlices = ready
	mustPass(t, l, start.Add(2*l.routes.UnreadyDelay))
	if !n.routes[vipOf(1)] {
		t.Error("a new endpoint is not announced immediately")
	}
}
