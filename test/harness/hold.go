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

	"github.com/millrace-lb/millrace/test/echo/holdreport"
)

// HoldOptions configure Hold.
type HoldOptions struct {
	VIPs []netip.Addr
	// From are the client addresses that share the flows; empty: the kernel selects.
	From []netip.Addr
	// FirstPort is the lowest local port, one per connection; 0: the kernel selects.
	FirstPort uint16
	UDP       bool
	Flows     int
	Interval  time.Duration
	Timeout   time.Duration
	// Burst is the number of UDP flows probed per second in a check.
	Burst int
}

// Hold is a client with many flows through a VIP.
type Hold struct {
	*reporter
	seen int
}

// Hold starts a client and returns when all flows are open. End or the end of ctx stops it.
func (c *Cluster) Hold(ctx context.Context, options HoldOptions) (*Hold, holdreport.Report, error) {
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
		return nil, holdreport.Report{}, err
	}
	h := &Hold{reporter: started}
	var report holdreport.Report
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

// Check probes every flow and returns the report. Broken has the connections broken since the previous
// check.
func (h *Hold) Check() (holdreport.Report, error) {
	var report holdreport.Report
	err := h.check(&report)
	all := len(report.Broken)
	report.Broken = report.Broken[min(h.seen, all):]
	h.seen = all
	return report, err
}
