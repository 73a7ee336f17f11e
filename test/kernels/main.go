// SPDX-License-Identifier: Apache-2.0

// Command kernels runs the tests that depend on the kernel: on the running one, and on
// the kernels named in kernels.txt, which it boots under qemu with the test
// programs in their initial file system. It needs root, and what
// hack/prerequisites.sh --kernels installs.
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

// running names the kernel that is running.
const running = "running"

func main() {
	verbose := flag.Bool("v", false, "show the output of tests that pass")
	limit := flag.Duration("timeout", 30*time.Minute, "how long a kernel may take for all tests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := run(ctx, flag.Args(), *verbose, *limit); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, wanted []string, verbose bool, limit time.Duration) (err error) {
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
	folder, err := os.MkdirTemp("", "millrace-kernels-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := build(ctx, folder); err != nil {
		return err
	}
	var errs []error
	for _, name := range wanted {
		ctx, cancel := context.WithTimeout(ctx, limit)
		errs = append(errs, runOn(ctx, name, kernels, folder, verbose))
		cancel()
	}
	return errors.Join(errs...)
}

// runOn runs all tests on the kernel of the name.
func runOn(ctx context.Context, name string, kernels []kernel, folder string, verbose bool) error {
	if name == running {
		return runHere(ctx, folder, verbose)
	}
	i := slices.IndexFunc(kernels, func(k kernel) bool { return k.name == name })
	if i < 0 {
		return fmt.Errorf("kernel %s is not in kernels.txt", name)
	}
	return boot(ctx, kernels[i], folder, verbose)
}
