// SPDX-License-Identifier: Apache-2.0

package report

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

func TestRatesOf(t *testing.T) {
	vip := netip.MustParseAddr("203.0.113.1")
	web := func(packets, connections, drops uint64) consoleapi.Frontend {
		return consoleapi.Frontend{
			FrontendName: consoleapi.FrontendName{VIP: vip, Port: 80, Protocol: "TCP", Service: "default/web"}, Packets: packets, Bytes: 100 * packets,
			Connections: connections, Drops: map[string]uint64{"no_endpoint": drops},
		}
	}
	dns := consoleapi.Frontend{FrontendName: consoleapi.FrontendName{VIP: vip, Port: 53, Protocol: "UDP"}, Packets: 1000}
	at := func(second int64, drops uint64, frontends ...consoleapi.Frontend) *consoleapi.Counters {
		return &consoleapi.Counters{
			Time: time.Unix(second, 0), Frontends: frontends,
			Drops: map[string]uint64{"no_endpoint": drops, "fragment": 4},
		}
	}
	for name, test := range map[string]struct {
		spans []Span
		want  Rates
	}{
		"nothing":   {nil, Rates{Frontends: []FrontendRate{}, Drops: map[string]float64{}, Uplinks: []UplinkRate{}}},
		"one line":  {[]Span{{After: at(1, 9, web(1, 1, 1))}}, Rates{Frontends: []FrontendRate{}, Drops: map[string]float64{}, Uplinks: []UplinkRate{}}},
		"same time": {[]Span{{at(1, 0), at(1, 9, web(1, 1, 1))}}, Rates{Frontends: []FrontendRate{}, Drops: map[string]float64{}, Uplinks: []UplinkRate{}}},
		"two nodes, the busiest frontend first": {
			[]Span{
				{at(10, 0, dns, web(0, 0, 0)), at(20, 20, dns, web(100, 10, 20))},
				{at(10, 0, web(100, 0, 0)), at(12, 0, web(140, 2, 0))},
			},
			Rates{Nodes: 2, Window: 10, Uplinks: []UplinkRate{}, Drops: map[string]float64{"no_endpoint": 2}, Frontends: []FrontendRate{
				{FrontendName: consoleapi.FrontendName{VIP: vip, Port: 80, Protocol: "TCP", Service: "default/web"}, Packets: 30, Bits: 24000, Connections: 2, Drops: 2},
				{FrontendName: consoleapi.FrontendName{VIP: vip, Port: 53, Protocol: "UDP"}},
			}},
		},
		"counters that were reset": {
			[]Span{{at(10, 50, web(100, 9, 50)), at(20, 10, web(50, 10, 10))}},
			Rates{Nodes: 1, Window: 10, Uplinks: []UplinkRate{}, Drops: map[string]float64{"no_endpoint": 1}, Frontends: []FrontendRate{
				{FrontendName: consoleapi.FrontendName{VIP: vip, Port: 80, Protocol: "TCP", Service: "default/web"}, Packets: 5, Bits: 4000, Connections: 0.1, Drops: 1},
			}},
		},
		"a new frontend has no rate yet": {
			[]Span{{at(10, 0), at(20, 0, web(50, 10, 10))}},
			Rates{Nodes: 1, Window: 10, Uplinks: []UplinkRate{}, Drops: map[string]float64{}, Frontends: []FrontendRate{
				{FrontendName: consoleapi.FrontendName{VIP: vip, Port: 80, Protocol: "TCP", Service: "default/web"}},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := RatesOf(test.spans); !reflect.DeepEqual(got, test.want) {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

func TestUplinkRates(t *testing.T) {
	at := func(node string, second int64, uplinks ...consoleapi.Uplink) *consoleapi.Counters {
		return &consoleapi.Counters{Node: node, Time: time.Unix(second, 0), Uplinks: uplinks}
	}
	eth := func(name string, transmit, redirect uint64) consoleapi.Uplink {
		return consoleapi.Uplink{Interface: name, Transmit: transmit, Redirect: redirect}
	}
	got := RatesOf([]Span{
		{at("node10", 10), at("node10", 12, eth("eth0", 8, 0))},
		{at("node2", 10, eth("eth0", 5, 5), eth("eth1", 9, 9)), at("node2", 20, eth("eth0", 5, 5), eth("eth1", 29, 19))},
	}).Uplinks
	want := []UplinkRate{{"node2", "eth1", 2, 1}, {"node10", "eth0", 4, 0}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
