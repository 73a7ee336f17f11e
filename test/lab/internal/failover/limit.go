// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/test/echo/holdreport"
)

type limit struct {
	gap time.Duration
	// any allows all request failures: the lab's client does not learn that a router has lost its routes.
	any         bool
	ignoresHeld bool
	// back bounds the time until a restarted router has all routes; 0: unlimited.
	back     time.Duration
	isSilent bool
}

type result struct {
	requests, failed int
	gap              time.Duration
	// broken counts held connections that broke although their pods live, lost those whose pods ended.
	broken, lost int
	back         time.Duration
	alarms       int
}

func (l limit) missed(got result) (missed []string) {
	if got.requests == 0 {
		missed = append(missed, "no request was made")
	}
	switch {
	case l.any:
	case l.gap > 0:
		if got.gap > l.gap {
			missed = append(missed, fmt.Sprintf("a gap of %d ms", got.gap.Milliseconds()))
		}
	case got.failed > 0:
		missed = append(missed, fmt.Sprintf("%d failed", got.failed))
	}
	if !l.any && got.broken > 0 {
		missed = append(missed, fmt.Sprintf("%d broken", got.broken))
	}
	if l.back > 0 && (got.back == 0 || got.back > l.back) {
		missed = append(missed, "routes back after "+inSeconds(got.back))
	}
	if l.isSilent && got.alarms > 0 {
		missed = append(missed, fmt.Sprintf("%d sessions lost", got.alarms))
	}
	return missed
}

// String returns the limit for the table.
func (l limit) String() string {
	var parts []string
	switch {
	case l.any:
	case l.gap > 0:
		parts = append(parts, fmt.Sprintf("gap ≤ %d ms", l.gap.Milliseconds()))
	default:
		parts = append(parts, "none failed")
	}
	if !l.any && !l.ignoresHeld {
		parts = append(parts, "none broken")
	}
	if l.back > 0 {
		parts = append(parts, "routes back within "+inSeconds(l.back))
	}
	if l.isSilent {
		parts = append(parts, "no session lost")
	}
	return strings.Join(parts, ", ")
}

func inSeconds(d time.Duration) string {
	if d == 0 {
		return "no time"
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

const titleWidth = 38

func header() string {
	return fmt.Sprintf("%-*s %9s %7s %12s %7s %10s  %s", titleWidth, "EVENT", "REQUESTS", "FAILED", "LONGEST GAP", "BROKEN", "POD ENDED", "LIMIT")
}

func row(e *event, got result) string {
	line := fmt.Sprintf("%-*s %9d %7d %9d ms %7d %10d  %s",
		titleWidth, e.title, got.requests, got.failed, got.gap.Milliseconds(), got.broken, got.lost, e.limit)
	verdict := "held"
	if missed := e.limit.missed(got); len(missed) > 0 {
		verdict = "MISSED (" + strings.Join(missed, ", ") + ")"
	}
	if got.back > 0 {
		verdict += "; routes back after " + inSeconds(got.back)
	}
	return line + ": " + verdict
}

// attribute counts broken connections by whether their pods live. live maps pods to nodes; dies is true if
// pods of the failing node ended.
func attribute(flows []holdreport.BrokenFlow, live map[string]string, dies bool) (broken, lost int) {
	for _, flow := range flows {
		on, lives := live[flow.Pod]
		if !lives || dies && on == node {
			lost++
		} else {
			broken++
		}
	}
	return broken, lost
}
