// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/api/inspect"
)

// Rates are what happens in each second, over all nodes.
type Rates struct {
	// Nodes is how many nodes are counted in.
	Nodes     int            `json:"nodes"`
	Frontends []FrontendRate `json:"frontends"`
	// Drops are of packets, by reason, with those that are for no frontend.
	Drops map[string]float64 `json:"drops"`
}

// FrontendRate is the rate of one VIP, port and protocol.
type FrontendRate struct {
	VIP         netip.Addr `json:"vip"`
	Port        uint16     `json:"port"`
	Protocol    string     `json:"protocol"`
	Service     string     `json:"service,omitempty"`
	Packets     float64    `json:"packetsPerSecond"`
	Bits        float64    `json:"bitsPerSecond"`
	Connections float64    `json:"connectionsPerSecond"`
	Drops       float64    `json:"dropsPerSecond"`
}

// Span is the counters of a node at two moments.
type Span struct{ Before, After *inspect.Counters }

// frontendKey is what a frontend has on every node.
type frontendKey struct {
	vip      netip.Addr
	port     uint16
	protocol string
}

// RatesOf sums the rates of nodes, the busiest frontend first.
func RatesOf(spans []Span) Rates {
	rates := Rates{Frontends: []FrontendRate{}, Drops: map[string]float64{}}
	sums := map[frontendKey]*FrontendRate{}
	for _, span := range spans {
		if span.Before == nil || span.After == nil {
			continue
		}
		seconds := span.After.Time.Sub(span.Before.Time).Seconds()
		if seconds <= 0 {
			continue
		}
		rates.Nodes++
		span.add(sums, seconds)
		for reason, count := range span.After.Drops {
			if rate := growth(span.Before.Drops[reason], count) / seconds; rate > 0 {
				rates.Drops[reason] += rate
			}
		}
	}
	for _, sum := range sums {
		rates.Frontends = append(rates.Frontends, *sum)
	}
	slices.SortFunc(rates.Frontends, func(a, b FrontendRate) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(b.Drops, a.Drops),
			a.VIP.Compare(b.VIP), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	return rates
}

func (s Span) add(sums map[frontendKey]*FrontendRate, seconds float64) {
	before := map[frontendKey]inspect.Frontend{}
	for _, frontend := range s.Before.Frontends {
		before[keyOf(frontend)] = frontend
	}
	for _, frontend := range s.After.Frontends {
		key := keyOf(frontend)
		sum := sums[key]
		if sum == nil {
			sum = &FrontendRate{VIP: key.vip, Port: key.port, Protocol: key.protocol}
			sums[key] = sum
		}
		sum.Service = cmp.Or(frontend.Service, sum.Service)
		was, known := before[key]
		if !known {
			// New since then: what it counts before its first line is not told.
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

func keyOf(frontend inspect.Frontend) frontendKey {
	return frontendKey{frontend.VIP, frontend.Port, frontend.Protocol}
}

// growth of a counter; one that was made anew counts from zero.
func growth(before, after uint64) float64 {
	if after < before {
		return float64(after)
	}
	return float64(after - before)
}
