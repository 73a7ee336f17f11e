// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/millrace-lb/millrace/test/echo/holdreport"
)

var errLimit = errors.New("limits were missed")

const (
	// mostEncapsulated is the maximum number of packets between nodes per packet of the flood while the
	// rows' history is young; see docs/design/untrusted-traffic.md.
	mostEncapsulated = 2
	// maxSlowdown is the maximum ratio of the 99th percentile to that without a flood.
	maxSlowdown = 2
)

type kind struct {
	name string
	// byNodes is true if packets have a node's source address.
	byNodes bool
}

var kinds = []kind{
	{name: "syn"}, {name: "ack"}, {name: "rst"}, {name: "fin"}, {name: "udp"}, {name: "fragment"},
	{name: "icmp-error"}, {name: "tunnel", byNodes: true},
}

// family is an address family with sources that are unused in the lab.
type family struct {
	name           string
	untrustedHosts netip.Prefix
}

var families = []family{
	{"IPv4", netip.MustParsePrefix("203.0.113.192/28")},
	{"IPv6", netip.MustParsePrefix("2001:db8:f100::/40")},
}

// Check returns an error for an unknown kind.
func Check(names []string) error {
	for _, name := range names {
		known := false
		var all []string
		for _, kind := range kinds {
			known = known || kind.name == name
			all = append(all, kind.name)
		}
		if !known {
			return fmt.Errorf("there is no flood %q, only %s", name, strings.Join(all, ", "))
		}
	}
	return nil
}

type result struct {
	packets int64
	rate    float64
	// encapsulated is the number of packets between nodes per packet of the flood.
	encapsulated float64
	broken       int
	first        []holdreport.BrokenFlow
	// latencyBefore and during are the 99th percentiles of response times before and during the flood, in
	// milliseconds.
	latencyBefore, latencyDuring float64
}

func (k kind) missed(got result) (missed []string) {
	most := float64(mostEncapsulated)
	if k.byNodes {
		// Forged packets must be dropped.
		most = 0.01
	}
	if got.packets == 0 {
		missed = append(missed, "nothing was sent")
	}
	if got.encapsulated > most {
		missed = append(missed, fmt.Sprintf("%.2f encapsulated packets", got.encapsulated))
	}
	if got.broken > 0 {
		missed = append(missed, fmt.Sprintf("%d broken", got.broken))
	}
	if got.latencyDuring > maxSlowdown*got.latencyBefore {
		missed = append(missed, fmt.Sprintf("answers took %.1f times as long", got.latencyDuring/got.latencyBefore))
	}
	return missed
}

func header() string {
	return fmt.Sprintf("%-11s %-5s %9s %9s %13s %7s %10s %10s  %s",
		"FLOOD", "", "PACKETS", "PER S", "ENCAPSULATED", "BROKEN", "P99 BEFORE", "P99 DURING", "LIMIT")
}

func row(k kind, f family, got result) string {
	verdict := "held"
	if missed := k.missed(got); len(missed) > 0 {
		verdict = "MISSED: " + strings.Join(missed, ", ")
	}
	return fmt.Sprintf("%-11s %-5s %9d %9.0f %13.3f %7d %7.1f ms %7.1f ms  %s",
		k.name, f.name, got.packets, got.rate, got.encapsulated, got.broken, got.latencyBefore, got.latencyDuring, verdict)
}
