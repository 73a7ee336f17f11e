// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
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
	From     []netip.Addr
	UDP      bool
	Flows    int
	Interval time.Duration
	// Timeout is when a flow without an answer is given up.
	Timeout time.Duration
	// Burst is how many UDP flows are asked in a second when they are checked.
	Burst int
}

// Hold is a client that holds many flows through a VIP.
type Hold struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	reports *json.Decoder
	stderr  bytes.Buffer
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
		"exec", "client", "--", filepath.Join(c.root, "bin", "echo"), "hold",
		"--to", strings.Join(to, ","), "--from", strings.Join(from, ","), "--flows", strconv.Itoa(options.Flows),
		"--interval", options.Interval.String(), "--timeout", options.Timeout.String(),
		"--udp=" + strconv.FormatBool(options.UDP),
	}
	if options.Burst > 0 {
		args = append(args, "--burst", strconv.Itoa(options.Burst))
	}
	h := &Hold{command: exec.CommandContext(ctx, c.lab, args...)}
	h.command.Dir = c.root
	h.command.Cancel = func() error { return h.command.Process.Signal(os.Interrupt) }
	h.command.WaitDelay = 10 * time.Second
	h.command.Stderr = &h.stderr
	stdin, err := h.command.StdinPipe()
	if err != nil {
		return nil, held.Report{}, err
	}
	stdout, err := h.command.StdoutPipe()
	if err != nil {
		return nil, held.Report{}, err
	}
	h.stdin, h.reports = stdin, json.NewDecoder(stdout)
	if err := h.command.Start(); err != nil {
		return nil, held.Report{}, fmt.Errorf("hold flows: %w", err)
	}
	report, err := h.report()
	if err != nil {
		return nil, report, err
	}
	if len(report.Broken) > 0 || report.Silent > 0 || report.Live != options.Flows {
		err := fmt.Errorf("of %d flows %d are open, %d silent (asked: %v), answered by %v: %q",
			options.Flows, report.Live, report.Silent, report.SilentPerPath, report.PerPod, report.FirstErrors)
		return nil, report, errors.Join(err, h.End())
	}
	return h, report, nil
}

func (h *Hold) report() (held.Report, error) {
	var report held.Report
	if err := h.reports.Decode(&report); err != nil {
		return report, fmt.Errorf("hold flows: read a report: %w: %s", errors.Join(err, h.End()), bytes.TrimSpace(h.stderr.Bytes()))
	}
	return report, nil
}

// Check has every flow make a request and returns when all were answered, or what
// failed to be. Broken has the connections that broke since the last check.
func (h *Hold) Check() (held.Report, error) {
	if _, err := io.WriteString(h.stdin, "check\n"); err != nil {
		return held.Report{}, fmt.Errorf("hold flows: %w: %s", errors.Join(err, h.End()), bytes.TrimSpace(h.stderr.Bytes()))
	}
	report, err := h.report()
	all := len(report.Broken)
	report.Broken = report.Broken[min(h.seen, all):]
	h.seen = all
	return report, err
}

// End ends the client.
func (h *Hold) End() error {
	// It ends at the end of its input, whatever it is doing, unless it has ended already.
	_ = h.stdin.Close()
	for h.reports.More() {
		var last held.Report
		if h.reports.Decode(&last) != nil {
			break
		}
	}
	if err := h.command.Wait(); err != nil {
		return fmt.Errorf("hold flows: %w: %s", err, bytes.TrimSpace(h.stderr.Bytes()))
	}
	return nil
}
