// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"math"
	"slices"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// Rates are rates per second, summed over all nodes.
type Rates struct {
	Nodes int `json:"nodes"`
	// Window is the longest averaging period of a node in seconds.
	Window    float64        `json:"windowSeconds"`
	Frontends []FrontendRate `json:"frontends"`
	// Drops are packets by reason, including packets for no frontend.
	Drops map[string]float64 `json:"drops"`
	// Uplinks are the interfaces that lose frames, by node and interface.
	Uplinks []UplinkRate `json:"uplinks"`
}

// UplinkRate is the rate, not zero, of frames that an interface's driver did not accept.
type UplinkRate struct {
	Node      string  `json:"node"`
	Interface string  `json:"interface"`
	Transmit  float64 `json:"transmitPerSecond"`
	Redirect  float64 `json:"redirectPerSecond"`
}

// FrontendRate is the rate of one frontend.
type FrontendRate struct {
	consoleapi.FrontendName
	Packets     float64 `json:"packetsPerSecond"`
	Bits        float64 `json:"bitsPerSecond"`
	Connections float64 `json:"connectionsPerSecond"`
	Drops       float64 `json:"dropsPerSecond"`
}

// Span are the counters of a node at two times.
type Span struct{ Before, After *consoleapi.Counters }

// RatesOf sums the rates of nodes, the busiest frontend first.
func RatesOf(spans []Span) Rates {
	rates := Rates{Frontends: []FrontendRate{}, Drops: map[string]float64{}, Uplinks: []UplinkRate{}}
	sums := map[consoleapi.FrontendName]*FrontendRate{}
	for _, span := range spans {
		if span.Before == nil || span.After == nil {
			continue
		}
		seconds := span.After.Time.Sub(span.Before.Time).Seconds()
		if seconds <= 0 {
			continue
		}
		rates.Nodes++
		rates.Window = max(rates.Window, math.Round(seconds*1000)/1000)
		span.add(sums, seconds)
		rates.Uplinks = append(rates.Uplinks, span.uplinks(seconds)...)
		for reason, count := range span.After.Drops {
			if rate := growth(span.Before.Drops[reason], count) / seconds; rate > 0 {
				rates.Drops[reason] += rate
			}
		}
	}
	for _, sum := range sums {
		rates.Frontends = append(rates.Frontends, *sum)
	}
	rates.sort()
	return rates
}

func (r *Rates) sort() {
	slices.SortFunc(r.Frontends, func(a, b FrontendRate) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(b.Drops, a.Drops), a.Compare(b.FrontendName))
	})
	slices.SortFunc(r.Uplinks, func(a, b UplinkRate) int {
		return cmp.Or(CompareNames(a.Node, b.Node), CompareNames(a.Interface, b.Interface))
	})
}

func (s Span) uplinks(seconds float64) []UplinkRate {
	before := map[string]consoleapi.Uplink{}
	for _, uplink := range s.Before.Uplinks {
		before[uplink.Interface] = uplink
	}
	var rates []UplinkRate
	for _, uplink := range s.After.Uplinks {
		was := before[uplink.Interface]
		rate := UplinkRate{
			Node: s.After.Node, Interface: uplink.Interface,
			Transmit: growth(was.Transmit, uplink.Transmit) / seconds,
			Redirect: growth(was.Redirect, uplink.Redirect) / seconds,
		}
		if rate.Transmit+rate.Redirect > 0 {
			rates = append(rates, rate)
		}
	}
	return rates
}

func (s Span) add(sums map[consoleapi.FrontendName]*FrontendRate, seconds float64) {
	before := map[consoleapi.FrontendName]consoleapi.Frontend{}
	for _, frontend := range s.Before.Frontends {
		before[keyOf(frontend)] = frontend
	}
	for _, frontend := range s.After.Frontends {
		key := keyOf(frontend)
		sum := sums[key]
		if sum == nil {
			sum = &FrontendRate{FrontendName: key}
			sums[key] = sum
		}
		sum.Service = cmp.Or(frontend.Service, sum.Service)
		was, known := before[key]
		if !known {
			// The frontend is new: its packets before its first line have no known period.
			continue
		}
		sum.Packets += growth(was.Packets, frontend.Packets) / seconds
		sum.Bits += 8 * growth(was.Bytes, frontend.Bytes) / seconds
		sum.Connections += growth(was.Connections, frontend.Connections) / seconds
		for reason, count := range frontend.Drops {
			sum.Drops += growth(was.Drops[reason], count) / seconds
		}
	}
}

func keyOf(frontend consoleapi.Frontend) consoleapi.FrontendName {
	name := frontend.FrontendName
	name.Service = ""
	return name
}

// growth returns the increase of a counter; a counter that was reset has started at zero.
func growth(before, after uint64) float64 {
	if after < before {
		return float64(after)
	}
	return float64(after - before)
}
