// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/test/echo/held"
)

// HoldOptions say what is held.
type HoldOptions struct {
	// VIPs share the flows, all to port 80.
	VIPs []netip.Addr
	// From are addresses of the client that share the flows; none leaves the choice
	// to its kernel.
	From []netip.Addr
	// FirstPort is the lowest of the client's own ports, one for each connection; 0 leaves the choice to
	// its kernel.
	FirstPort uint16
	UDP       bool
	Flows     int
	Interval  time.Duration
	// Timeout is when a flow without an answer is given up.
	Timeout time.Duration
	// Burst is how many UDP flows are asked in a second when they are checked.
	Burst int
}

// Hold is a client that holds many flows through a VIP.
type Hold struct {
	*reporter
	// seen is how many broken connections have been told of.
	seen int
}

// Hold starts a client that holds flows, and returns when all are open. End ends it, and
// so does the end of ctx.
func (c *Cluster) Hold(ctx context.Context, options HoldOptions) (*Hold, held.Report, error) {
	var to, from []string
	for _, vip := range options.VIPs {
		to = append(to, netip.AddrPortFrom(vip, 80).String())
	}
	for _, address := range options.From {
		from = append(from, address.String())
	}
	args := []string{
		"--to", strings.Join(to, ","), "--from", strings.Join(from, ","), "--flows", strconv.Itoa(options.Flows),
		"--interval", options.Interval.String(), "--timeout", options.Timeout.String(),
		"--udp=" + strconv.FormatBool(options.UDP), "--first-port", strconv.Itoa(int(options.FirstPort)),
	}
	if options.Burst > 0 {
		args = append(args, "--burst", strconv.Itoa(options.Burst))
	}
	started, err := c.startReporter(ctx, "hold", args...)
	if err != nil {
		return nil, held.Report{}, err
	}
	h := &Hold{reporter: started}
	var report held.Report
	if err := h.next(&report); err != nil {
		return nil, report, err
	}
	if len(report.Broken) > 0 || report.Silent > 0 || report.Live != options.Flows {
		err := fmt.Errorf("of %d flows %d are open, %d silent (asked: %v), answered by %v: %q",
			options.Flows, report.Live, report.Silent, report.SilentPerPath, report.PerPod, report.FirstErrors)
		return nil, report, errors.Join(err, h.End())
	}
	return h, report, nil
}

// Check has every flow make a request and returns when all were answered, or what
// failed to be. Broken has the connections that broke since the last check.
func (h *Hold) Check() (held.Report, error) {
	var report held.Report
	err := h.check(&report)
	all := len(report.Broken)
	report.Broken = report.Broken[min(h.seen, all):]
	h.seen = all
	return report, err
}
