// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/millrace-lb/millrace/test/echo/held"
)

// errLimit means that a flood did more than it may.
var errLimit = errors.New("limits were missed")

const (
	// mostEncapsulated is how many packets nodes may send to each other for one of the flood,
	// while the history of rows is young, see docs/design/untrusted-traffic.md.
	mostEncapsulated = 2
	// mostSlower is how many times as long as without a flood the slowest hundredth of answers may
	// take.
	mostSlower = 2
)

// kind is what a flood consists of.
type kind struct {
	// name is that of `echo flood`.
	name string
	// byNodes is true where packets pretend to come from a node.
	byNodes bool
}

var kinds = []kind{
	{name: "syn"}, {name: "ack"}, {name: "rst"}, {name: "fin"}, {name: "udp"}, {name: "fragment"},
	{name: "icmp-error"}, {name: "tunnel", byNodes: true},
}

// family is an address family, with sources that nobody in the lab has.
type family struct {
	name           string
	untrustedHosts netip.Prefix
}

var families = []family{
	{"IPv4", netip.MustParsePrefix("203.0.113.192/28")},
	{"IPv6", netip.MustParsePrefix("2001:db8:f100::/40")},
}

// Check returns an error for a name that is no kind's.
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

// result is what a flood did.
type result struct {
	packets int64
	// rate is in packets per second.
	rate float64
	// encapsulated is how many packets nodes sent to each other for each packet of the flood.
	encapsulated float64
	// broken are connections of the other Services.
	broken int
	// first are the first of them.
	first []held.BrokenFlow
	// quiet and loud are the 99th percentile of the time that answers took before the flood and
	// during it, in milliseconds.
	quiet, loud float64
}

// missed returns what of a result is beyond the limits, in words.
func (k kind) missed(got result) (missed []string) {
	most := float64(mostEncapsulated)
	if k.byNodes {
		// No forged packet may be taken, and so none leads to another.
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
	if got.loud > mostSlower*got.quiet {
		missed = append(missed, fmt.Sprintf("answers took %.1f times as long", got.loud/got.quiet))
	}
	return missed
}

func header() string {
	return fmt.Sprintf("%-11s %-5s %9s %9s %13s %7s %10s %10s  %s",
		"FLOOD", "", "PACKETS", "PER S", "ENCAPSULATED", "BROKEN", "P99 BEFORE", "P99 DURING", "LIMIT")
}

// row is a result as the table has it.
func row(k kind, f family, got result) string {
	verdict := "held"
	if missed := k.missed(got); len(missed) > 0 {
		verdict = "MISSED: " + strings.Join(missed, ", ")
	}
	return fmt.Sprintf("%-11s %-5s %9d %9.0f %13.3f %7d %7.1f ms %7.1f ms  %s",
		k.name, f.name, got.packets, got.rate, got.encapsulated, got.broken, got.quiet, got.loud, verdict)
}
