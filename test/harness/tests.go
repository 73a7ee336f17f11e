// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// RunTests prepares the cluster, runs the tests and stops the lab unless MILLRACE_KEEP_LAB is set. It
// returns the exit code and saves the logs of a failed run under name.
func RunTests(m interface{ Run() int }, name string, prepare func(context.Context, *Cluster) error) int {
	return RunOn(name, prepare, func(context.Context, *Cluster) int { return m.Run() })
}

// RunOn is RunTests with a function that runs the tests on the cluster.
func RunOn(name string, prepare func(context.Context, *Cluster) error, run func(context.Context, *Cluster) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cluster, err := Open(os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if os.Getenv("MILLRACE_KEEP_LAB") != "" {
			return
		}
		if err := cluster.Down(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	code := 1
	if err := prepare(ctx, cluster); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = run(ctx, cluster)
	}
	if code != 0 {
		cluster.SaveLogs(ctx, name)
	}
	return code
}

// SaveLogs saves the logs and the state of the cluster and prints their directory.
func (c *Cluster) SaveLogs(ctx context.Context, name string) {
	logs, err := c.KeepLogs(ctx, name)
	fmt.Fprintf(os.Stderr, "the logs and the state of the cluster are in %s (%v)\n", logs, err)
}
