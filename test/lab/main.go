// SPDX-License-Identifier: Apache-2.0

// Command lab runs a Kubernetes cluster, its routers and a client in network namespaces of this machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("the command ended with code %d", int(e)) }

type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx))
}

func run(ctx context.Context) int {
	err := newCommand().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	fmt.Fprintln(os.Stderr, "lab:", err)
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

func newCommand() *cobra.Command {
	app := &app{}
	root := &cobra.Command{
		Use:   "lab",
		Short: "A Kubernetes cluster, routers and a client in network namespaces",
		Long: `A Kubernetes cluster, routers and a client in network namespaces.

  client ── outside ══ router1…M ══ fabric ── node1…N, cp

Routers run FRR or BIRD (AS 64512) and accept BGP from the nodes. Needs root.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		// This allows --state before kubectl, which parses its own flags.
		TraverseChildren: true,
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("no command given: see `lab --help`")}
		},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("no command %q: see `lab --help`", args[0])}
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&app.state, "state", os.Getenv("MILLRACE_LAB_STATE"),
		"directory of the lab (default .lab in the project's directory; also MILLRACE_LAB_STATE)")
	root.AddCommand(
		app.upCommand(), app.downCommand(), app.buildCommand(), app.hostsCommand(),
		app.execCommand(), app.kubectlCommand(), app.vtyshCommand(), app.birdcCommand(), app.bgpCommand(),
		app.nodeCommand(), app.linkCommand(), app.imageCommand(), app.benchCommand(), app.failoverCommand(), app.floodCommand(), app.upstreamCommand(), initCommand(),
	)
	return root
}
