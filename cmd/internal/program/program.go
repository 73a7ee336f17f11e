// SPDX-License-Identifier: Apache-2.0

// Package program implements the common parts of the main packages of servers.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// Run is the function of a program. Its context ends with SIGINT or SIGTERM.
type Run func(ctx context.Context, arguments []string, stdout, stderr io.Writer) error

// Main runs a program, and exits with status 1 on error.
func Main(name string, run Run) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	stop()
	os.Exit(1)
}

// Flags returns a flag set with the common flag --version. Errors are printed to stderr.
func Flags(name string, stderr io.Writer) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Bool(versionFlag, false, "print the version and exit")
	return flags
}

const versionFlag = "version"

// RegisterKubeconfig calls RegisterFlags of controller-runtime and sets the usage of its flag. It is a
// parameter, because not all programs link controller-runtime.
func RegisterKubeconfig(flags *flag.FlagSet, register func(*flag.FlagSet)) {
	register(flags)
	flags.Lookup("kubeconfig").Usage = "kubeconfig file (default: the service account of the pod)"
}

// Parse parses flags returned by Flags; linked is the linker's version, or empty. done means that the
// program is to exit, because it has printed the version.
func Parse(flags *flag.FlagSet, arguments []string, linked string, stdout io.Writer) (done bool, err error) {
	if err := flags.Parse(arguments); err != nil {
		return false, err
	}
	if flags.NArg() > 0 {
		return false, fmt.Errorf("unexpected argument %q: all settings are flags", flags.Arg(0))
	}
	if defined := flags.Lookup(versionFlag); defined.Value.String() != "true" {
		return false, nil
	}
	_, err = fmt.Fprintln(stdout, Version(linked))
	return true, err
}

// Version returns the version that the linker set, or else the one that the Go command recorded.
func Version(linked string) string {
	if linked != "" {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
