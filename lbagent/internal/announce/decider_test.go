// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
)

// TestDecider compares a Decider with Decide over random histories of models, nodes and failed writes.
func TestDecider(t *testing.T) {
	parts := 0
	rapid.Check(t, func(t *rapid.T) {
		h := history{planner: plan.NewPlanner(forwarding.NewState()), have: forwarding.NewState(), m: base()}
		h.m.VIPs, h.m.Frontends = nil, nil
		for range rapid.IntRange(2, 10).Draw(t, "passes") {
			before := h.decider.decisions
			h.pass(t)
			if delta.IsSame(before, h.decider.decisions) && len(before) > 0 {
				parts++
			}
		}
	})
	if parts == 0 {
		t.Error("every pass decided all VIPs")
	}
}

type history struct {
	m       *model.Model
	node    Node
	planner *plan.Planner
	have    *forwarding.State
	pending *forwarding.Pending
	decider Decider
	unready Unready
}

func (h *history) pass(t *rapid.T) {
	last := h.m
	next := *last
	h.m = &next
	changes := h.edit(t, last)
	var whole Unready
	h.unready.update(h.m, changes)
	if whole.update(h.m, nil); !maps.Equal(h.unready.idle, whole.idle) {
		t.Fatalf("idle = %v, want %v", h.unready.idle, whole.idle)
	}
	h.see(t)
	want, differs, _ := h.planner.Replan(plan.MapContent{State: h.have, Pending: h.pending}, h.m, changes, limits)
	schedule := forwarding.NewScheduleOf(h.have, want, differs)
	fails := rapid.IntRange(0, 4).Draw(t, "writes fail") == 0
	write := func(forwarding.Op) error {
		if fails && rapid.IntRange(0, 4).Draw(t, "fails") == 0 {
			return errors.New("no room")
		}
		return nil
	}
	added := schedule.Add(write)
	h.follow(schedule, &added)
	if rapid.IntRange(0, 9).Draw(t, "the maps cannot be read") == 0 {
		// Nothing is decided, and the next plan is complete and for another model.
		h.pending = nil
		return
	}
	h.node.Programmed, h.node.Planned = h.have, want
	routes, decisions := h.decider.Decide(h.m, Change{Model: changes, Maps: differs}, &h.node)
	wantRoutes, wantDecisions := Decide(h.m, &h.node)
	if !reflect.DeepEqual(routes, wantRoutes) || !reflect.DeepEqual(decisions, wantDecisions) {
		t.Fatalf("routes %v, decisions %v\nwant %v and %v\nchanges %+v, entries %+v", routes, decisions, wantRoutes, wantDecisions, changes, differs)
	}
	due := rapid.Bool().Draw(t, "removals are due")
	removed := schedule.Remove(write, func(forwarding.Op) bool { return due })
	h.follow(schedule, &removed)
}

func (h *history) follow(schedule *forwarding.Schedule, outcome *forwarding.Outcome) {
	if h.pending = nil; outcome.Err() == nil {
		h.pending = schedule.Pending()
	}
	if reached := schedule.Result(); reached != nil {
		h.have = reached
	} else if outcome.Err() != nil || len(outcome.Done) > 0 {
		h.have = forwarding.Apply(h.have, outcome.Changed())
	}
}

func (h *history) edit(t *rapid.T, last *model.Model) *model.Changes {
	changes := &model.Changes{Since: last}
	h.m.VIPs, h.m.Frontends = slices.Clone(h.m.VIPs), slices.Clone(h.m.Frontends)
	if rapid.IntRange(0, 3).Draw(t, "a node fails or comes back") == 0 {
		h.m.Nodes = slices.Clone(h.m.Nodes)
		node := &h.m.Nodes[len(h.m.Nodes)-1]
		node.Down = !node.Down
	}
	for number := range byte(rapid.IntRange(0, 3).Draw(t, "VIPs that change")) {
		address := netip.AddrFrom4([4]byte{203, 0, 113, 1 + (number*7+byte(rapid.IntRange(0, 5).Draw(t, "VIP")))%6})
		if slices.Contains(changes.VIPs, address) {
			continue
		}
		changes.VIPs = append(changes.VIPs, address)
		h.m.VIPs = slices.DeleteFunc(h.m.VIPs, func(vip model.VIP) bool { return vip.Address == address })
		h.m.Frontends = slices.DeleteFunc(h.m.Frontends, func(f *model.Frontend) bool { return f.Key.VIP == address })
		if rapid.IntRange(0, 4).Draw(t, "goes") == 0 {
			continue
		}
		vip, frontends := drawVIP(t, address)
		h.m.VIPs, h.m.Frontends = append(h.m.VIPs, vip), append(h.m.Frontends, frontends...)
	}
	slices.SortFunc(changes.VIPs, netip.Addr.Compare)
	slices.SortFunc(h.m.VIPs, func(a, b model.VIP) int { return a.Address.Compare(b.Address) })
	slices.SortFunc(h.m.Frontends, func(a, b *model.Frontend) int { return a.Key.Compare(b.Key) })
	if rapid.IntRange(0, 9).Draw(t, "changes are not known") == 0 {
		return nil
	}
	return changes
}

func drawVIP(t *rapid.T, address netip.Addr) (model.VIP, []*model.Frontend) {
	bytes := address.As4()
	service := model.ServiceName{Namespace: "default", Name: "of" + address.String()}
	vip := model.VIP{
		Address: address, Pool: "public",
		Services: []model.VIPService{{Name: service, Labels: map[string]string{"tier": rapid.SampledFrom([]string{"front", "back"}).Draw(t, "tier")}}},
		Release:  rapid.SampledFrom([]millracev1beta1.ReleasePhase{"", "", "", millracev1beta1.ReleaseDraining, millracev1beta1.ReleaseWithdrawn}).Draw(t, "release"),
	}
	if rapid.IntRange(0, 9).Draw(t, "occupied") == 0 {
		vip.Occupant = "a router"
		return vip, nil
	}
	var frontends []*model.Frontend
	for _, port := range []uint16{80, 443}[:rapid.IntRange(0, 2).Draw(t, "ports")] {
		f := &model.Frontend{
			Key:     forwarding.FrontendKey{VIP: address, Port: port, Protocol: forwarding.ProtocolTCP},
			Service: service, Local: rapid.Bool().Draw(t, "Local"), Weights: map[forwarding.NodeID]uint32{},
		}
		f.Shared = f.Local && rapid.Bool().Draw(t, "shared")
		if rapid.IntRange(0, 3).Draw(t, "endpoint here") > 0 {
			f.Weights[1] = 1
			f.Endpoints = []forwarding.Endpoint{{Address: netip.AddrFrom4([4]byte{198, 18, bytes[3], 1}), Port: port}}
		}
		if rapid.Bool().Draw(t, "endpoint elsewhere") {
			f.Weights[2] = 1
		}
		if rapid.IntRange(0, 4).Draw(t, "restricted") == 0 {
			f.Restricted, f.Sources = true, []netip.Prefix{netip.MustParsePrefix(rapid.SampledFrom([]string{"198.51.0.0/16", "198.51.100.0/24"}).Draw(t, "source"))}
		}
		frontends = append(frontends, f)
	}
	return vip, frontends
}

func (h *history) see(t *rapid.T) {
	h.node.Announced = maps.Clone(h.node.Announced)
	if h.node.Announced == nil {
		h.node.Announced = map[netip.Addr]bool{}
	}
	for _, decision := range h.decider.decisions {
		h.node.Announced[decision.VIP] = len(decision.Peers) > 0
	}
	some := func(label string) map[netip.Addr]bool {
		vips := map[netip.Addr]bool{}
		for i := range h.m.VIPs {
			if rapid.IntRange(0, 3).Draw(t, label) == 0 {
				vips[h.m.VIPs[i].Address] = true
			}
		}
		return vips
	}
	switch rapid.IntRange(0, 20).Draw(t, "beside VIPs") {
	case 0:
		h.node.Phase = rapid.SampledFrom([]Phase{Active, Draining, Drained}).Draw(t, "phase")
	case 1:
		h.node.Final = !h.node.Final
	case 2:
		h.m.CutOff = !h.m.CutOff
	case 3:
		h.m.Peers = base().Peers[:rapid.IntRange(0, 2).Draw(t, "peers")]
	case 4:
		h.m.NextHops = map[string]model.NextHops{"r2": {IPv4: node4}}
		if rapid.Bool().Draw(t, "next hop") {
			h.m.NextHops["r1"] = model.NextHops{IPv4: netip.MustParseAddr("198.51.100.77")}
		}
	case 5:
		advertisement := model.Advertisement{Name: "all", Communities: []uint32{1}, Weighed: rapid.Bool().Draw(t, "weighed")}
		if rapid.Bool().Draw(t, "selects") {
			advertisement.Services = labelled("front")
		}
		h.m.Advertisements = []model.Advertisement{advertisement}
	case 6:
		h.m.Advertisements = []model.Advertisement{{Name: "all", Length4: 24}}
		h.m.Aggregates = []model.Aggregate{{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Advertisement: "all"}}
	case 7:
		h.m.Advertisements, h.m.Aggregates = base().Advertisements, nil
	case 8:
		h.node.Unattached = map[string]string{"r1": "uplink eth0 lacks the programs"}
	case 9:
		h.node.Unattached = nil
	case 10, 11, 12:
		h.node.Unready = some("unready")
	case 13, 14:
		h.node.Duplicates = map[netip.Addr]Decision{}
		for vip := range some("duplicate") {
			h.node.Duplicates[vip] = Decision{Reason: ReasonDuplicate, Message: "another host has the address"}
		}
	}
}

func TestDeciderKeepsLists(t *testing.T) {
	m := base()
	state := planned(m)
	var d Decider
	node := nodeWith(state, state)
	routes, decisions := d.Decide(m, Change{}, node)
	next := *m
	frontend := *m.Frontends[0]
	frontend.Weights = map[forwarding.NodeID]uint32{1: 1}
	next.Frontends = []*model.Frontend{&frontend}
	change := Change{Model: &model.Changes{Since: m, VIPs: []netip.Addr{vip4}}, Maps: &forwarding.Entries{VIPs: []netip.Addr{vip4}}}
	sameRoutes, sameDecisions := d.Decide(&next, change, node)
	if len(routes["r1"]) != 1 || !delta.IsSame(routes["r1"], sameRoutes["r1"]) || !delta.IsSame(decisions, sameDecisions) {
		t.Errorf("routes %v and %v, decisions %v and %v are not shared", routes, sameRoutes, decisions, sameDecisions)
	}
}
