// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/detector"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/attach"
	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/health"
	"github.com/millrace-lb/millrace/lbagent/internal/metrics"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
	"github.com/millrace-lb/millrace/lbagent/internal/reconcile"
	"github.com/millrace-lb/millrace/lbagent/internal/routes"
	"github.com/millrace-lb/millrace/lbagent/internal/snapshot"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
	"github.com/millrace-lb/millrace/lbagent/internal/uplink"
)

var errInjected = errors.New("injected")

// node is an in-memory data plane, speaker and reporter. At each step it checks that no unprogrammed VIP is
// announced.
type node struct {
	t     testing.TB
	state *forwarding.State
	// maps, if set, are in the kernel, and state is their expected content.
	maps   *kernelMaps
	killed func() bool
	// fails reports whether an operation, Dump, ReadBack, Attach or Set fails.
	fails   func(what string) bool
	refuses func(op forwarding.Op) bool

	attachments []dataplane.Attachment
	uplinks     []netdev.Link
	leads       map[netip.Addr][]int
	keepsOff    map[string]bool
	targets     map[forwarding.NodeID]fib.Target
	devices     map[int][]int
	routes      map[netip.Addr]bool
	// closed are VIPs with source ranges.
	closed map[netip.Addr]bool
	sets   int
	dumps  int
	steps  []string
	want   bgp.Want
	// watch is called with maps and routes after each write.
	watch       func(after string, state *forwarding.State, routes announce.Routes)
	observation status.Observation
}

func newNode(t testing.TB) *node {
	return &node{
		t:       t,
		state:   forwarding.NewState(),
		fails:   func(string) bool { return false },
		refuses: func(forwarding.Op) bool { return false },
		watch:   func(string, *forwarding.State, announce.Routes) {},
		killed:  func() bool { return false },
		uplinks: []netdev.Link{{Name: "eth0", Index: 2, Ethernet: true, HasAddress: true}},
		routes:  map[netip.Addr]bool{},
	}
}

func (n *node) Apply(op forwarding.Op) error {
	kind := strings.TrimPrefix(fmt.Sprintf("%T", op), "forwarding.")
	if n.fails(kind) || n.refuses(op) {
		return fmt.Errorf("%s: %w", kind, errInjected)
	}
	if err := n.write(op, kind); err != nil {
		return err
	}
	n.state = forwarding.Apply(n.state, []forwarding.Op{op})
	n.steps = append(n.steps, kind)
	n.check(kind)
	return nil
}

func (n *node) open(limits forwarding.Limits) error {
	if n.maps == nil {
		return nil
	}
	return n.maps.open(limits)
}

// write applies an operation to the maps in the kernel, if any. On failure they may hold a part of it.
func (n *node) write(op forwarding.Op, kind string) error {
	if n.maps == nil {
		return nil
	}
	err := n.maps.apply(op, kind)
	if err != nil && n.killed() {
		panic(errKilled)
	}
	return err
}

func (n *node) check(after string) {
	n.t.Helper()
	n.watch(after, n.state, n.want.Routes)
	programmed := map[netip.Addr]bool{}
	for key := range n.state.Frontends {
		programmed[key.VIP] = true
	}
	for vip := range n.routes {
		if _, ours := n.state.VIPs[vip]; !ours || !programmed[vip] {
			n.t.Fatalf("after %s: VIP %s is announced, but not programmed", after, vip)
		}
	}
	for key, frontend := range n.state.Frontends {
		if n.closed[key.VIP] && frontend.Ranges == 0 {
			n.t.Fatalf("after %s: %s admits all clients", after, key)
		}
	}
}

func (n *node) Dump() (*forwarding.State, error) {
	n.dumps++
	if n.fails("Dump") {
		return nil, errInjected
	}
	return n.read()
}

// ReadBack updates the State to the result of a Dump.
func (n *node) ReadBack(state *forwarding.State, failed []forwarding.Op) error {
	if n.fails("ReadBack") {
		return errInjected
	}
	if n.maps != nil {
		if err := n.maps.plane.ReadBack(state, failed); err != nil {
			return err
		}
	}
	held, err := n.read()
	if err != nil {
		return err
	}
	if n.maps == nil {
		*state = *used(state)
	}
	if !reflect.DeepEqual(state, held) {
		n.t.Fatalf("failed operations %v: read state\n%+v\nmaps contain\n%+v", failed, state, held)
	}
	return nil
}

func (n *node) read() (*forwarding.State, error) {
	if n.maps == nil {
		return used(n.state), nil
	}
	state, err := n.maps.plane.Dump()
	if err != nil {
		return nil, err
	}
	n.state = state
	n.check("Dump")
	return state, nil
}

// used returns a State without the tables of no frontend, which a Dump omits.
func used(s *forwarding.State) *forwarding.State {
	state := s.Clone()
	tables, endpointTables := map[forwarding.NodeTableSlot]bool{}, map[forwarding.EndpointTableSlot]bool{}
	for _, frontend := range s.Frontends {
		for _, slot := range slotsOf(frontend) {
			tables[slot] = true
		}
		endpointTables[frontend.Endpoints] = true
	}
	maps.DeleteFunc(state.NodeTables, func(slot forwarding.NodeTableSlot, _ *forwarding.NodeTable) bool { return !tables[slot] })
	maps.DeleteFunc(state.EndpointTables, func(slot forwarding.EndpointTableSlot, _ *forwarding.EndpointTable) bool {
		return !endpointTables[slot]
	})
	return state
}

func (n *node) Attach(uplinks []dataplane.Uplink) error {
	n.attachments = nil
	var err error
	for _, uplink := range uplinks {
		attachment := dataplane.Attachment{Interface: uplink.Name, Index: uplink.Index, Device: uplink.Index, Mode: attach.Native}
		if n.fails("Attach") || n.keepsOff[uplink.Name] {
			attachment.Mode = ""
			attachment.Err = &dataplane.UplinkError{Index: uplink.Index, Interface: uplink.Name, Err: errInjected}
			err = errors.Join(err, attachment.Err)
		}
		n.attachments = append(n.attachments, attachment)
	}
	return err
}

func (n *node) SetTargets(targets map[forwarding.NodeID]fib.Target, devices map[int][]int) {
	n.targets, n.devices = targets, devices
}

func (n *node) Attachments() []dataplane.Attachment { return n.attachments }

type (
	speakerOf  struct{ *node }
	reporterOf struct{ *node }
)

func (s speakerOf) Set(want bgp.Want) error {
	s.sets++
	s.routes = map[netip.Addr]bool{}
	for _, routes := range want.Routes {
		for _, route := range routes {
			if route.Prefix.IsSingleIP() {
				s.routes[route.Prefix.Addr()] = true
			}
		}
	}
	s.want = want
	s.steps = append(s.steps, "Set")
	s.check("Set")
	if s.fails("Set") {
		return errInjected
	}
	return nil
}

func (s speakerOf) Sessions() []bgp.Session {
	var sessions []bgp.Session
	for i := range s.want.Peers {
		peer := &s.want.Peers[i]
		sessions = append(sessions, bgp.Session{Peer: peer.Name, Address: peer.Address, State: millracev1beta1.SessionEstablished})
	}
	return sessions
}

func (s speakerOf) Routes() announce.Routes { return s.want.Routes }

func (s speakerOf) Announced() *announce.Prefixes {
	prefixes := &announce.Prefixes{}
	for _, routes := range s.want.Routes {
		for _, route := range routes {
			prefixes.Add(route.Prefix)
		}
	}
	return prefixes
}

func (s speakerOf) DynamicNeighbors() []netip.Addr { return nil }

func (s speakerOf) Refused() bgp.Refused { return bgp.Refused{} }

func (r reporterOf) Set(observation status.Observation) { r.observation = observation }

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const testDelay = time.Second

var testLimits = forwarding.Limits{Frontends: 300, NodeTables: 300, EndpointTables: 300, Endpoints: 3000, VIPs: 300, SourceRanges: 300}

// copied returns a snapshot with lists that the test may modify.
func copied(objects *model.Snapshot) *model.Snapshot {
	s := *objects
	s.Services, s.EndpointSlices = slices.Clone(s.Services), slices.Clone(s.EndpointSlices)
	s.VIPs, s.Pools, s.LBNodes = slices.Clone(s.VIPs), slices.Clone(s.Pools), slices.Clone(s.LBNodes)
	s.Peers, s.Advertisements, s.Routes = slices.Clone(s.Peers), slices.Clone(s.Advertisements), slices.Clone(s.Routes)
	return &s
}

func newLoop(n *node, objects *model.Snapshot) *loop {
	have, err := n.read()
	if err != nil {
		n.t.Fatal(err)
	}
	l := &loop{
		assembler: &snapshot.Assembler{Objects: func() *model.Snapshot { return copied(objects) }, Logger: logr.Discard()},
		uplinks: uplink.New(func([]netip.Addr, []netip.Addr, time.Time) (*netdev.Uplinks, error) {
			return &netdev.Uplinks{Links: n.uplinks, PeerUplinks: n.leads}, nil
		}, n, logr.Discard()),
		hops:       n,
		detector:   detector.New(detector.NoProcess{}, nil, logr.Discard()),
		status:     reporterOf{n},
		logger:     logr.Discard(),
		health:     health.New(time.Now),
		passes:     metrics.NewPasses(),
		published:  console.NewPublished("node1"),
		nodeHealth: watchBy(nil),
	}
	l.routes = routes.New(have, routes.Config{
		Speaker: speakerOf{n}, Handover: &end{}, DrainDelay: 5 * testDelay, OnStep: func(step string) { l.health.SetStep(step) }, Logger: logr.Discard(),
	})
	l.maps = reconcile.New(have, plan.NewPlanner(have), reconcile.Config{
		Plane: n, Limits: testLimits, WithdrawDelay: testDelay, Explain: nameFlag,
		OnStep: func() { l.health.SetStep("maps") }, Repaired: func(entries int) { l.passes.Repaired(entries) }, Logger: logr.Discard(),
	})
	return l
}

func mustPass(t *testing.T, l *loop, now time.Time) time.Duration {
	t.Helper()
	again, err := l.pass(now)
	if err != nil {
		t.Fatal(err)
	}
	return again
}
