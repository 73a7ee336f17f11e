// SPDX-License-Identifier: Apache-2.0

// Command echo is the workload of the lab, in one static program:
//
//   - the process that keeps a pod's namespaces: pause
//   - the servers behind Services: serve, sink
//   - a DNS of Services: dns
//   - clients, which print what they saw as JSON: load, web, udp, push, hold, flood, mtu,
//     fetch, upload, api
//
// Clients exit with 1 when anything went wrong.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

type command func(ctx context.Context, args []string, stdout io.Writer) error

var commands = map[string]command{
	"pause":  pause,
	"serve":  serve,
	"sink":   sink,
	"load":   load,
	"udp":    udp,
	"push":   push,
	"fetch":  fetch,
	"hold":   hold,
	"flood":  flood,
	"mtu":    mtu,
	"api":    api,
	"dns":    dns,
	"upload": upload,
	"web":    web,
}

var errFailed = errors.New("not everything succeeded")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

func run(ctx context.Context, args []string) int {
	// Sandbox containers have no arguments.
	name := "pause"
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	run, ok := commands[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "usage: echo %s [FLAGS]\n", strings.Join(slices.Sorted(maps.Keys(commands)), "|"))
		return exitUsage
	}
	switch err := run(ctx, args, os.Stdout); {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errFailed):
		return exitFailure
	default:
		fmt.Fprintf(os.Stderr, "echo %s: %v\n", name, err)
		return exitFailure
	}
}

func parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return nil
}
