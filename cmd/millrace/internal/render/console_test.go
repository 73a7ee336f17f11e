// SPDX-License-Identifier: Apache-2.0

package render

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

func TestNumber(t *testing.T) {
	for value, want := range map[float64]string{
		0: "0", 0.5: "0.50", 9.99: "9.99", 9.996: "10.0", 99.94: "99.9", 99.96: "100", 999.4: "999", 999.6: "1.00k",
		12345: "12.3k", 1e6: "1.00M", 2.5e9: "2.50G", 9.9994e14: "1P", 1e18: "1000P",
	} {
		if got := number(value); got != want {
			t.Errorf("%v is written %s, want %s", value, got, want)
		}
	}
}

func TestDropCounters(t *testing.T) {
	got := DropCounters([]consoleapi.Drops{
		{Node: "node2", Reasons: map[string]uint64{"no_frontend": 5}, Lost: 1},
		{Node: "node1", Reasons: map[string]uint64{"fragment": 1, "no_frontend": 7, "headroom": 0}, Skipped: 2},
	}, 100)
	want := []string{
		"Drops since the counters were created:",
		"REASON       PACKETS  NODES",
		"no_frontend  12       node1 7, node2 5",
		"fragment     1        node1 1",
		"3 of them were not sampled.",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := DropCounters([]consoleapi.Drops{{Node: "node1"}}, 100); !slices.Equal(got, []string{"No drops on 1 node since the counters were created."}) {
		t.Errorf("without drops: %q", got)
	}
}

func TestDropLine(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 678_000_000, time.Local)
	drop := &consoleapi.Drop{
		Time: at.UTC(), Node: "node1", Reason: "fragment", Protocol: "UDP",
		Source: netip.MustParseAddrPort("198.51.100.1:0"), Destination: netip.MustParseAddrPort("[2001:db8::1]:53"),
	}
	for width, want := range map[int]string{
		0:  "15:04:05.678  node1       fragment            198.51.100.1              [2001:db8::1]:53          UDP    -",
		80: "15:04:05  node1     fragment        198.51.100.1           [2001:db8::1]:53",
	} {
		if got := Drop(drop, width); got != want {
			t.Errorf("line\n%s, want\n%s", got, want)
		}
	}
}

func TestRatesFitTheScreen(t *testing.T) {
	rates := report.Rates{Nodes: 3, Window: 2.001, Drops: map[string]float64{"no_frontend": 2, "fragment": 0.5}}
	for port := range uint16(30) {
		rates.Frontends = append(rates.Frontends, report.FrontendRate{
			FrontendName: consoleapi.FrontendName{VIP: netip.MustParseAddr("203.0.113.1"), Port: port, Protocol: "TCP", Service: strings.Repeat("long", 30)},
		})
	}
	lines := Rates(rates, 80, 10)
	if len(lines) != 10 || lines[9] != "… and 23 more" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
	if want := "3 nodes, 30 frontends, over 2 s, drops: no_frontend 2.00/s, fragment 0.50/s"; lines[0] != want {
		t.Errorf("head %q, want %q", lines[0], want)
	}
	for _, line := range lines {
		if len([]rune(line)) > 80 {
			t.Errorf("%q is longer than the screen", line)
		}
	}
	if all := Rates(rates, 0, 0); len(all) != 32 {
		t.Errorf("%d lines without a screen, want 32", len(all))
	}
	rates.Uplinks = []report.UplinkRate{{Node: "node2", Interface: "eth1", Transmit: 0.5, Redirect: 12}}
	if want, got := "node2: the driver of eth1 rejects frames: transmit 0.50/s, redirect 12.0/s", Rates(rates, 0, 0)[1]; got != want {
		t.Errorf("line of an uplink %q, want %q", got, want)
	}
}
