// SPDX-License-Identifier: Apache-2.0

// Command bench compares the CPU time of a request and of a TLS handshake between Millrace's proxy,
// HAProxy, nginx and Caddy. All run in network namespaces that the command creates, each proxy on one
// CPU, and take turns. CPU time depends little on other load of the machine. The command needs root.
//
//	bench                  prints the times and the ratios
//	bench -strict          fails if a ratio is below its target
//	bench -run REGEXP      measures only the cases whose names match
//	bench -of REGEXP       measures only the proxies whose names match
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// isolated is the environment variable with the process ID of the process in its own namespaces.
const isolated = "MILLRACE_BENCH_ISOLATED"

type options struct {
	programs string
	strict   bool
	cases    *regexp.Regexp
	subjects *regexp.Regexp
	rounds   int
	scale    float64
}

func main() {
	var o options
	flag.StringVar(&o.programs, "programs", "bin", "directory of lbproxy and caddy")
	flag.BoolVar(&o.strict, "strict", false, "fail if a ratio is below its target")
	cases := flag.String("run", "", "measure only cases whose names match this regular expression")
	subjects := flag.String("of", "", "measure only proxies whose names match this regular expression")
	flag.IntVar(&o.rounds, "rounds", 5, "number of rounds; the median is reported")
	flag.Float64Var(&o.scale, "scale", 1, "factor for the number of requests")
	flag.Parse()
	var err error
	if o.cases, err = regexp.Compile(*cases); err == nil {
		o.subjects, err = regexp.Compile(*subjects)
	}
	if err != nil || flag.NArg() > 0 || o.rounds < 1 || o.scale <= 0 {
		fmt.Fprintln(os.Stderr, "bench: invalid arguments:", err)
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	if self := strconv.Itoa(os.Getpid()); os.Getenv(isolated) != self {
		return isolate(self)
	}
	runtime.LockOSThread()
	w, err := newWorld(o)
	defer func() { err = errors.Join(err, w.close()) }()
	if err != nil {
		return err
	}
	figures, err := w.measure(ctx, o)
	if err != nil {
		return err
	}
	return report(out, figures, o)
}

// isolate executes the program again in new mount and network namespaces. It returns only on failure.
func isolate(self string) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("create namespaces (needs root): %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// ip(8) stores its namespaces below /run.
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if err := os.Setenv(isolated, self); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
}

func sh(ctx context.Context, line ...string) (string, error) {
	output, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, output)
	}
	return string(output), nil
}
