// SPDX-License-Identifier: Apache-2.0

package dad

import (
	"net"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

var (
	web     = netip.MustParseAddr("198.51.100.80")
	onEth0  = Probe{Interface: "eth0", Address: web}
	onEth1  = Probe{Interface: "eth1", Address: web}
	printer = net.HardwareAddr{2, 0, 0, 0, 0, 9}
	begin   = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
)

func TestEvaluate(t *testing.T) {
	nobody, held := Answer{}, Answer{HardwareAddr: printer}
	young := VIP{Address: web, Created: begin.Add(-time.Second)}
	old := VIP{Address: web, Created: begin.Add(-time.Hour)}
	announced, waited := young, old
	announced.Announced, waited.Waits = true, true
	restarted := waited
	restarted.Announced = true
	type step struct {
		after   time.Duration
		answers map[Probe]Answer
		want    string
	}
	first := func(answer Answer) map[Probe]Answer { return map[Probe]Answer{onEth0: answer} }
	both := func(a, b Answer) map[Probe]Answer { return map[Probe]Answer{onEth0: a, onEth1: b} }
	for _, test := range []struct {
		name  string
		vip   VIP
		steps []step
	}{
		{"new VIP is pending until both replies", young, []step{
			{0, nil, "checking"}, {time.Second, first(nobody), "checking"}, {2 * time.Second, both(nobody, nobody), "free"},
		}},
		{"host on any link", young, []step{{0, both(nobody, held), "withheld"}}},
		{"host left", young, []step{
			{0, both(nobody, held), "withheld"}, {time.Hour, both(nobody, held), "withheld"}, {2 * time.Hour, both(nobody, nobody), "free"},
			{3 * time.Hour, both(nobody, held), "told"},
		}},
		{"no longer pending without replies", young, []step{
			{0, nil, "checking"}, {answerTimeout - 1, first(nobody), "checking"}, {answerTimeout, first(nobody), "free"}, {time.Hour, both(held, nobody), "told"},
		}},
		{"old VIP used by other nodes", old, []step{{0, nil, "free"}, {time.Second, both(held, nobody), "told"}}},
		{"announced VIP stays announced", announced, []step{{0, nil, "free"}, {time.Second, both(held, nobody), "told"}}},
		{"pending VIP stays pending", waited, []step{
			{0, nil, "checking"}, {time.Second, both(nobody, held), "withheld"}, {time.Minute, both(nobody, nobody), "free"},
		}},
		{"VIP possibly announced by another agent is pending after a reply", restarted, []step{
			{0, nil, "free"}, {time.Second, first(held), "withheld"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var p Tentative
			for i, step := range test.steps {
				probes := map[netip.Addr][]Probe{web: {onEth0, onEth1}}
				verdict := p.Evaluate([]VIP{test.vip}, probes, step.answers, begin.Add(step.after))
				got := "free"
				switch {
				case verdict.Checking[web]:
					got = "checking"
				case len(verdict.Holders) == 1 && verdict.Holders[0].Withheld:
					got = "withheld"
				case len(verdict.Holders) == 1:
					got = "told"
				}
				if got != step.want {
					t.Errorf("step %d: state %s, want %s; %+v", i, got, step.want, verdict)
				}
				if (verdict.Again > 0) != verdict.Checking[web] {
					t.Errorf("step %d: next check in %s, checking %v", i, verdict.Again, verdict.Checking[web])
				}
			}
		})
	}
}

// VIPs outside of all networks are not probed, and a returning VIP starts again.
func TestReturningVIPIsProbedAgain(t *testing.T) {
	var p Tentative
	vip := VIP{Address: web, Created: begin}
	if got := p.Evaluate([]VIP{vip}, nil, nil, begin); len(got.Checking)+len(got.Holders) > 0 {
		t.Errorf("without a probe: %+v", got)
	}
	probes := map[netip.Addr][]Probe{web: {onEth0}}
	held := map[Probe]Answer{onEth0: {HardwareAddr: printer}}
	want := Verdict{Checking: map[netip.Addr]bool{}, Holders: []Holder{{Probe: onEth0, HardwareAddr: printer, Withheld: true}}}
	if got := p.Evaluate([]VIP{vip}, probes, held, begin); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	nobody := map[Probe]Answer{onEth0: {}}
	p.Evaluate([]VIP{vip}, probes, nobody, begin)
	vip.Created = begin.Add(time.Second)
	if got := p.Evaluate([]VIP{vip}, probes, nil, vip.Created); !got.Checking[web] {
		t.Errorf("the next VIP with this address is not pending: %+v", got)
	}
	p.Evaluate(nil, probes, held, begin)
	if len(p.known) > 0 {
		t.Errorf("removed VIPs are still tracked: %v", p.known)
	}
}
