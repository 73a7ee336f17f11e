// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/test/echo/held"
)

// limit is what clients may notice of an event at most. Its zero value allows nothing.
type limit struct {
	// gap is for how long new connections may fail; 0 is for not at all.
	gap time.Duration
	// any is true where requests may fail as they like: the lab's client does not learn that a
	// router has lost its routes.
	any bool
	// unheld is true where no connections are held.
	unheld bool
	// back is how soon a router has all routes after its daemon is back; 0 is without a limit.
	back time.Duration
	// quiet is true where no session may be lost.
	quiet bool
}

// result is a row of the table.
type result struct {
	requests, failed int
	// gap is the longest time in which requests failed.
	gap time.Duration
	// broken are held connections that broke though their pods live; lost those whose pods
	// ended.
	broken, lost int
	// back is how long a router took until it had all routes again; 0 where none was restarted.
	back time.Duration
	// alarms are sessions that were lost though nothing had happened to them.
	alarms int
}

// missed returns what of a result is beyond the limit, in words.
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
	if l.quiet && got.alarms > 0 {
		missed = append(missed, fmt.Sprintf("%d sessions lost", got.alarms))
	}
	return missed
}

// String is the limit as the table has it.
func (l limit) String() string {
	var parts []string
	switch {
	case l.any:
	case l.gap > 0:
		parts = append(parts, fmt.Sprintf("gap ≤ %d ms", l.gap.Milliseconds()))
	default:
		parts = append(parts, "none failed")
	}
	if !l.any && !l.unheld {
		parts = append(parts, "none broken")
	}
	if l.back > 0 {
		parts = append(parts, "routes back within "+inSeconds(l.back))
	}
	if l.quiet {
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

// row is a result as the table has it.
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

// attribute tells broken connections whose pods live from those whose pods ended. live has the
// nodes of living pods by name; dies is true where those of the failing node ended with it.
func attribute(flows []held.BrokenFlow, live map[string]string, dies bool) (broken, lost int) {
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
