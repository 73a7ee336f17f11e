// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

type figures map[[2]string][]time.Duration

func (f figures) add(name, of string, took time.Duration) {
	f[[2]string{name, of}] = append(f[[2]string{name, of}], took)
}

// median returns the median, or 0 without measurements.
func (f figures) median(name, of string) time.Duration {
	sorted := slices.Sorted(slices.Values(f[[2]string{name, of}]))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)/2]
}

// processorTime returns the CPU time of a process and its children.
func (p *process) processorTime() (time.Duration, error) {
	pid := p.command.Process.Pid
	total, err := processTime(pid)
	if err != nil {
		return 0, err
	}
	// nginx has a worker process.
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	for _, text := range strings.Fields(string(children)) {
		child, err := strconv.Atoi(text)
		if err != nil {
			return 0, err
		}
		took, err := processTime(child)
		if err != nil {
			return 0, err
		}
		total += took
	}
	return total, nil
}

// processTime reads the CPU clock of a process, see clock_getcpuclockid(3).
func processTime(pid int) (time.Duration, error) {
	const scheduled = 2
	var at unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &at); err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(at.Nano()), nil
}

func report(out io.Writer, f figures, o options) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "µs of processor time\t")
	for _, s := range subjects {
		fmt.Fprintf(table, "%s\t", s.name)
	}
	fmt.Fprint(table, "HAProxy / millrace\ttarget\tCaddy / millrace\t\n")
	var missed []error
	for _, c := range benchCases {
		mine := f.median(c.name, ours)
		if mine == 0 {
			continue
		}
		fmt.Fprintf(table, "%s\t", c.name)
		for _, s := range subjects {
			fmt.Fprintf(table, "%.1f\t", float64(f.median(c.name, s.name).Nanoseconds())/1000)
		}
		toHAProxy := float64(f.median(c.name, haproxy)) / float64(mine)
		toCaddy := float64(f.median(c.name, caddy)) / float64(mine)
		fmt.Fprintf(table, "%.2f\t≥ %.2f\t%.2f\t\n", toHAProxy, c.target, toCaddy)
		if toHAProxy < c.target && o.subjects.MatchString(haproxy) {
			missed = append(missed, fmt.Errorf("%s: ratio %.2f to HAProxy, below %.2f", c.name, toHAProxy, c.target))
		}
		if toCaddy < 1 && o.subjects.MatchString(caddy) {
			missed = append(missed, fmt.Errorf("%s: ratio %.2f to Caddy, below 1", c.name, toCaddy))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if !o.strict {
		for _, err := range missed {
			fmt.Fprintln(out, "below the target:", err)
		}
		return nil
	}
	return errors.Join(missed...)
}
