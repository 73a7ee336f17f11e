// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// ported returns frontends of a namespace's Service on a VIP, one per port, each with its own local pod.
func ported(namespace string, vip, ports int) []model.Frontend {
	frontends := make([]model.Frontend, 0, ports)
	for port := range ports {
		f := frontend(vip, fmt.Sprintf("web%d", vip), vip)
		f.Service.Namespace = namespace
		f.Key.Port, f.PortName = uint16(1000+port), fmt.Sprint(port)
		f.Endpoints[0].Port = f.Key.Port
		frontends = append(frontends, f)
	}
	return frontends
}

func aged(m *model.Model, older func(i int) int) *model.Model {
	for i := range m.VIPs {
		m.VIPs[i].Created = time.Unix(int64(1e9+older(i)), 0)
	}
	return m
}

func programmed(state *forwarding.State, m *model.Model) map[string]int {
	counts := map[string]int{}
	for _, f := range m.Frontends {
		if _, found := state.Frontends[f.Key]; found {
			counts[f.Service.Namespace]++
		}
	}
	return counts
}

// A namespace with too many ports does not consume the capacity of others, regardless of the scarce
// resource, even if its VIP is older and has a lower address, and with empty maps as well as programmed
// ones.
func TestManyPortsOfOneNamespace(t *testing.T) {
	for name, scarce := range map[string]func(*forwarding.Limits){
		"frontends":       func(limits *forwarding.Limits) { limits.Frontends = 8 },
		"endpoint tables": func(limits *forwarding.Limits) { limits.EndpointTables = 8 },
		"endpoints":       func(limits *forwarding.Limits) { limits.Endpoints = 8 },
	} {
		t.Run(name, func(t *testing.T) {
			limits := ample
			scarce(&limits)
			m := aged(modelOf(append(ported("noise", 1, 200), append(ported("shop", 2, 3), ported("bank", 3, 2)...)...)...), func(i int) int { return i })
			state, problems := advance(t, NewPlanner(forwarding.NewState()), forwarding.NewState(), m, limits)
			if got := programmed(state, m); got["shop"] != 3 || got["bank"] != 2 || got["noise"] != 3 {
				t.Errorf("programmed frontends = %v", got)
			}
			if len(problems) != 1 || !strings.Contains(problems[0].Message, "203.0.113.1:1003/TCP and 196 more: ") {
				t.Errorf("problems = %+v", problems)
			}
		})
	}
}

func TestOlderVIPsComeFirst(t *testing.T) {
	for name, scarce := range map[string]func(*forwarding.Limits){
		"frontends": func(limits *forwarding.Limits) { limits.Frontends = 2 },
		"VIPs":      func(limits *forwarding.Limits) { limits.VIPs = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			limits := ample
			scarce(&limits)
			m := aged(modelOf(frontend(1, "a", 1), frontend(2, "b", 2), frontend(3, "c", 3)), func(i int) int { return -i })
			state, _ := advance(t, NewPlanner(forwarding.NewState()), forwarding.NewState(), m, limits)
			if hasFrontend(state, 1) || !hasFrontend(state, 2) || !hasFrontend(state, 3) {
				t.Errorf("frontends = %v", state.Frontends)
			}
		})
	}
}

// A namespace uses at most half of the source ranges; others can even change their lists.
func TestManySourcesOfOneNamespace(t *testing.T) {
	limits := ample
	limits.SourceRanges = 20
	var frontends []model.Frontend
	for vip := range 9 {
		f := restricted(frontend(1+vip, fmt.Sprint("noise", vip), 1), 10*vip, 10*vip+1, 10*vip+2)
		f.Service.Namespace = "noise"
		frontends = append(frontends, f)
	}
	p, have := NewPlanner(forwarding.NewState()), forwarding.NewState()
	have, problems := advance(t, p, have, modelOf(frontends...), limits)
	if len(have.Frontends) != 3 || len(problems) != 6 {
		t.Errorf("%d frontends with 3 prefixes each, %d problems", len(have.Frontends), len(problems))
	}
	for _, lists := range [][]int{{200, 201, 202}, {210, 211, 212, 213}} {
		shop := restricted(frontend(20, "shop", 1), lists...)
		have, _ = advance(t, p, have, modelOf(append(frontends, shop)...), limits)
		if got, want := admitted(have, key(20)), asksFor(&shop); !hasFrontend(have, 20) || got != want {
			t.Errorf("admitted prefixes of shop = %s, want %s", got, want)
		}
	}
}

func TestFairShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		namespaces := rapid.IntRange(1, 6).Draw(t, "namespaces")
		limits := ample
		limits.Frontends = rapid.IntRange(namespaces, 60).Draw(t, "room")
		var frontends []model.Frontend
		asked := map[string]int{}
		for i := range namespaces {
			namespace := fmt.Sprint("n", i)
			for vip := range rapid.IntRange(1, 3).Draw(t, "VIPs") {
				ports := rapid.IntRange(1, 40).Draw(t, "ports")
				asked[namespace] += ports
				frontends = append(frontends, ported(namespace, 1+10*vip+i, ports)...)
			}
		}
		m := aged(modelOf(frontends...), func(int) int { return rapid.IntRange(0, 5).Draw(t, "age") })
		state, _ := NewPlanner(forwarding.NewState()).Plan(forwarding.NewState(), m, limits)
		got := programmed(state, m)
		for namespace, count := range asked {
			if want := min(count, limits.Frontends/namespaces); got[namespace] < want {
				t.Errorf("namespace %s has %d of %d frontends, want its share of %d", namespace, got[namespace], count, want)
			}
		}
		if len(state.Frontends) != min(len(m.Frontends), limits.Frontends) {
			t.Errorf("%d of %d frontends were planned, limit %d", len(state.Frontends), len(m.Frontends), limits.Frontends)
		}
	})
}
