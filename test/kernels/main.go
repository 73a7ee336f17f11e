// SPDX-License-Identifier: Apache-2.0

// Command kernels runs kernel-dependent tests on the running kernel and, under qemu, on the kernels of
// kernels.txt. It requires root and the packages of hack/prerequisites.sh --kernels, and caches kernels in
// millrace-kernels in the user's cache directory.
//
//	kernels            runs on all
//	kernels 6.1        runs on that one
//	kernels running    runs on the running one
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const running = "running"

type options struct {
	verbose bool
	pattern string
	count   int
	limit   time.Duration
}

func main() {
	var o options
	flag.BoolVar(&o.verbose, "v", false, "show the output of tests that pass")
	flag.StringVar(&o.pattern, "run", "", "run the tests that match this regular expression")
	flag.IntVar(&o.count, "count", 1, "run each test that many times")
	flag.DurationVar(&o.limit, "timeout", time.Hour, "how long a kernel may take for all tests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := run(ctx, flag.Args(), o); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, wanted []string, o options) (err error) {
	kernels, err := readKernels("test/kernels/kernels.txt")
	if err != nil {
		return err
	}
	if len(wanted) == 0 {
		wanted = append(wanted, running)
		for _, k := range kernels {
			wanted = append(wanted, k.name)
		}
	}
	directory, err := os.MkdirTemp("", "millrace-kernels-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	if err := build(ctx, directory); err != nil {
		return err
	}
	var errs []error
	for _, name := range wanted {
		ctx, cancel := context.WithTimeout(ctx, o.limit)
		errs = append(errs, runOn(ctx, name, kernels, directory, o))
		cancel()
	}
	return errors.Join(errs...)
}

func runOn(ctx context.Context, name string, kernels []kernel, directory string, o options) error {
	if name == running {
		return runHere(ctx, directory, o)
	}
	i := slices.IndexFunc(kernels, func(k kernel) bool { return k.name == name })
	if i < 0 {
		return fmt.Errorf("kernel %s is not in kernels.txt", name)
	}
	return boot(ctx, kernels[i], directory, o)
}
