// SPDX-License-Identifier: Apache-2.0

// Command millrace shows what Millrace does in a cluster and what is wrong. As
// kubectl-millrace on the PATH it is `kubectl millrace`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/timeline"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitOK = iota
	exitError
	// exitProblems is that of `status --exit-code` and `analyze` where there are problems.
	exitProblems
	// exitDropped is that of a trace that ends with a drop.
	exitDropped
)

// environment is what a run takes from the outside.
type environment struct {
	// args are those of the process, its own name first.
	args []string
	// getenv gives defaults of flags.
	getenv func(string) string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	// width of the screen in characters; 0 is without limit. height is 0 where
	// there is no screen.
	width, height int
	colour        bool
	// agents finds those that are asked for VIPs; nil: those of the cluster.
	agents func(cluster.Config, []corev1.Pod) (agents, error)
	// events finds those of a Service; nil: those of the cluster.
	events func(namespace, name string) ([]timeline.Event, error)
}

func main() {
	// client-go logs each stream that is cut off, also where this program ends it. What
	// fails comes back as an error.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, processEnvironment())
	stop()
	os.Exit(code)
}

// processEnvironment measures the terminal, if there is one. Without one the text
// is made for 100 columns; https://no-color.org says when not to colour.
func processEnvironment() environment {
	env := environment{args: os.Args, getenv: os.Getenv, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, width: 100}
	if terminal := int(os.Stdout.Fd()); term.IsTerminal(terminal) {
		env.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		if columns, rows, err := term.GetSize(terminal); err == nil && columns > 0 {
			env.width, env.height = columns, rows
		}
	}
	return env
}

func run(ctx context.Context, env environment) int {
	root := newCommand(env)
	root.SetArgs(arguments(env.args))
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	err := root.ExecuteContext(ctx)
	code := exitCode(err)
	if code == exitError {
		fmt.Fprintf(env.stderr, "millrace: %v\n", err)
	}
	return code
}

func exitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errProblems):
		return exitProblems
	case errors.Is(err, errDropped):
		return exitDropped
	default:
		return exitError
	}
}

// completer is the name of the executable by which kubectl completes the arguments of
// this plug-in (k8s.io/kubectl/pkg/cmd, plugin_completion.go).
const completer = "kubectl_complete-millrace"

// arguments are those of the command line. As completer, this program prints what
// can come next, as its shell completion does.
func arguments(args []string) []string {
	if filepath.Base(args[0]) == completer {
		return append([]string{cobra.ShellCompRequestCmd}, args[1:]...)
	}
	return args[1:]
}

// calledAs is how the user calls this program: kubectl runs a plug-in by the
// name of its file.
func calledAs(path string) string {
	if name := filepath.Base(path); strings.HasPrefix(name, "kubectl-") || name == completer {
		return "kubectl millrace"
	}
	return "millrace"
}
