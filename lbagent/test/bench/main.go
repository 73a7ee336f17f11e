// SPDX-License-Identifier: Apache-2.0

// Command bench measures the cost of a packet in the data plane by BPF_PROG_TEST_RUN. It runs the agent's
// programs with maps filled by the agent's code, and minimal floor programs for comparison. It needs root.
//
//	bench                  prints the costs and the ratios
//	bench -strict          fails if a ratio is above its limit
//	bench -run REGEXP      measures only the cases whose names match
//	bench -beside OBJECT   also measures another compiled object, with the same maps
//	bench -katran PATH     also measures Katran's balancer, compiled from this checkout
//	bench -pin PATH        pins the XDP program, for another tool to measure
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

const isolated = "MILLRACE_BENCH_ISOLATED"

type options struct {
	strict bool
	pin    string
	beside string
	katran string
	cases  *regexp.Regexp
	rounds int
}

func main() {
	var o options
	flag.BoolVar(&o.strict, "strict", false, "fail where a ratio is above its limit")
	flag.StringVar(&o.pin, "pin", "", "pin the XDP program at this path of a BPF file system and wait")
	flag.StringVar(&o.beside, "beside", "", "measure also the programs of this compiled object, whose maps must have the same layout")
	flag.StringVar(&o.katran, "katran", "", "measure also Katran's balancer, from this checkout of github.com/facebookincubator/katran")
	cases := flag.String("run", "", "measure only cases whose names match this regular expression")
	flag.IntVar(&o.rounds, "rounds", 7, "rounds, of which the fastest counts")
	flag.Parse()
	var err error
	if o.cases, err = regexp.Compile(*cases); err != nil {
		fmt.Fprintln(os.Stderr, "bench: -run:", err)
		os.Exit(2)
	}
	if flag.NArg() > 0 || o.rounds < 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(o options, out io.Writer) error {
	// Thread time and namespaces belong to a thread.
	runtime.LockOSThread()
	self := strconv.Itoa(os.Getpid())
	if os.Getenv(isolated) != self {
		if err := mountStandard(o.pin); err != nil {
			return err
		}
		return isolate(self, o.pin == "")
	}
	w, err := newWorld()
	if err != nil {
		return err
	}
	if o.pin != "" {
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
		defer stop()
		return errors.Join(w.servePin(ctx, o.pin, out), w.Close())
	}
	err = errors.Join(w.measure(o, out), w.Close())
	if err == nil && o.cases.MatchString(contended) {
		err = contention(o.rounds, out)
	}
	return err
}

const standardDirectory = "/sys/fs/bpf"

// mountStandard mounts the BPF file system at its standard place for a pin, like bpftool. It stays mounted.
func mountStandard(pin string) error {
	if filepath.Dir(pin) != standardDirectory {
		return nil
	}
	var found unix.Statfs_t
	if err := unix.Statfs(standardDirectory, &found); err != nil {
		return fmt.Errorf("stat %s: %w", standardDirectory, err)
	}
	if found.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if err := unix.Mount("bpf", standardDirectory, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount a BPF file system at %s: %w; run as root", standardDirectory, err)
	}
	return nil
}

// isolate re-executes the program in new namespaces and returns only on failure. With a pin, the network
// namespace is shared, so that other tools see the interface.
func isolate(self string, network bool) error {
	flags := unix.CLONE_NEWNS
	if network {
		flags |= unix.CLONE_NEWNET
	}
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("create namespaces: %w; run as root", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := os.Setenv(isolated, self); err != nil {
		return err
	}
	return fmt.Errorf("start again in new namespaces: %w", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}
