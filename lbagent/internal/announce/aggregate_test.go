// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

var aggregate = netip.MustParsePrefix("203.0.113.0/28")

// aggregated is base with a second VIP and an aggregate of both.
func aggregated() *model.Model {
	m := base()
	second := vip4.Next()
	m.VIPs = append(m.VIPs, model.VIP{Address: second, Pool: "public", Services: m.VIPs[0].Services})
	frontend := *m.Frontends[0]
	frontend.Key.VIP, frontend.Service = second, other
	m.Frontends = append(m.Frontends, &frontend)
	m.Advertisements[0].Length4 = aggregate.Bits()
	m.Aggregates = []model.Aggregate{{Prefix: aggregate, Advertisement: "all"}}
	return m
}

func prefixes(routes []Route) []string {
	var texts []string
	for _, route := range routes {
		texts = append(texts, route.Prefix.String())
	}
	return texts
}

func TestAggregates(t *testing.T) {
	whole, single := []string{"203.0.113.0/28"}, []string{"203.0.113.1/32", "203.0.113.2/32"}
	for _, test := range []struct {
		name  string
		model func(*model.Model)
		maps  func(*forwarding.State)
		want  []string
	}{
		{"two VIPs", nil, nil, whole},
		{"one VIP removed", func(m *model.Model) { m.Frontends[0].Weights = nil }, nil, whole},
		{"both go", func(m *model.Model) { m.Frontends[0].Weights, m.Frontends[1].Weights = nil, nil }, nil, nil},
		{"refused", func(m *model.Model) { m.Aggregates = nil }, nil, single},
		{"not programmed", nil, func(s *forwarding.State) {
			delete(s.SourceRanges, forwarding.SourceRange{Set: forwarding.Aggregates, Prefix: aggregate})
		}, single},
		{"the first advertisement by name does not aggregate", func(m *model.Model) {
			m.Advertisements = append([]model.Advertisement{{Name: "a"}}, m.Advertisements...)
		}, nil, single},
		{"different length", func(m *model.Model) {
			m.Advertisements = append([]model.Advertisement{{Name: "a", Length4: 24}}, m.Advertisements...)
			m.Aggregates = []model.Aggregate{{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Advertisement: "a"}}
		}, nil, []string{"203.0.113.0/24"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := aggregated()
			if test.model != nil {
				test.model(m)
			}
			state := planned(m)
			if test.maps != nil {
				test.maps(state)
			}
			routes, decisions := Decide(m, nodeWith(state, state))
			for _, peer := range []string{"r1", "r2"} {
				if got := prefixes(routes[peer]); !reflect.DeepEqual(got, test.want) {
					t.Errorf("%s: got %v, want %v", peer, got, test.want)
				}
			}
			if len(decisions) != 2 {
				t.Errorf("decisions %v, want one per VIP", decisions)
			}
		})
	}
}

// An aggregate's attributes are those of the first advertisement by name, in any order of the VIPs.
func TestAttributesOfAggregates(t *testing.T) {
	low, high := uint32(1), uint32(2)
	for _, firstVIP := range []int{0, 1} {
		m := aggregated()
		m.VIPs[1-firstVIP].Pool = "private"
		m.Advertisements = []model.Advertisement{
			{Name: "a", Pools: []string{"public"}, MED: &low, Length4: aggregate.Bits()},
			{Name: "b", MED: &high, Length4: aggregate.Bits()},
		}
		state := planned(m)
		routes, _ := Decide(m, nodeWith(state, state))
		if len(routes["r1"]) != 1 || routes["r1"][0].MED != &low {
			t.Errorf("VIP %d is first: routes %+v, want one with the MED of a", firstVIP, routes["r1"])
		}
	}
}

// A departing node marks an aggregate once no VIP of it needs the node.
func TestDrainOfAggregates(t *testing.T) {
	for alone, marked := range map[bool]bool{false: true, true: false} {
		m := aggregated()
		if alone {
			m.Frontends[1].Local, m.Frontends[1].Weights = true, map[forwarding.NodeID]uint32{1: 1}
		}
		state := planned(m)
		node := nodeWith(state, state)
		node.Phase = Draining
		routes, _ := Decide(m, node)
		if got := prefixes(routes["r1"]); !reflect.DeepEqual(got, []string{"203.0.113.0/28"}) {
			t.Fatalf("alone %t: routes = %v", alone, got)
		}
		if got := len(routes["r1"][0].Communities) > 0; got != marked {
			t.Errorf("alone %t: marked = %t, want %t", alone, got, marked)
		}
	}
}
