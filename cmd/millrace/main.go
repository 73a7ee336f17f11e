// SPDX-License-Identifier: Apache-2.0

// Command millrace shows what Millrace does in a cluster. As kubectl-millrace it is a plug-in of kubectl.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
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
	"github.com/millrace-lb/millrace/cmd/millrace/internal/usage"
)

// version is set by the linker.
var version = "dev"

const (
	exitOK = iota
	exitError
	// exitProblems is used by `status --exit-code` and `analyze` if there are problems.
	exitProblems
	// exitDropped is used by a trace that ends with a drop.
	exitDropped
)

// environment is the process's environment, which tests replace.
type environment struct {
	args   []string
	getenv func(string) string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	// width of the screen in characters; 0: unlimited. height is 0 without a terminal.
	width, height int
	colour        bool
	// agents finds the agents to query; nil: the cluster's.
	agents func(cluster.Config, []corev1.Pod) (agents, error)
	// events finds the Events of a Service; nil: the cluster's.
	events func(namespace, name string) ([]timeline.Event, error)
}

func main() {
	// client-go logs streams that are cut off, even by this program; failures are returned as errors.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, processEnvironment())
	stop()
	os.Exit(code)
}

// processEnvironment does not limit the width of pipes and files. COLUMNS overrides the width of the
// terminal, and NO_COLOR disables colours (https://no-color.org).
func processEnvironment() environment {
	env := environment{args: os.Args, getenv: os.Getenv, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	if terminal := int(os.Stdout.Fd()); term.IsTerminal(terminal) {
		env.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		if columns, rows, err := term.GetSize(terminal); err == nil && columns > 0 {
			env.width, env.height = columns, rows
		}
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		env.width = columns
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
		fmt.Fprintf(env.stderr, "millrace: %v\n", usage.Rephrase(err))
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

// completer is run by kubectl to complete arguments (k8s.io/kubectl/pkg/cmd, plugin_completion.go).
const completer = "kubectl_complete-millrace"

// arguments returns the arguments for cobra; as completer the program prints completions.
func arguments(args []string) []string {
	if filepath.Base(args[0]) == completer {
		return append([]string{cobra.ShellCompRequestCmd}, args[1:]...)
	}
	return args[1:]
}

// commandName returns the command as the user types it: kubectl runs a plug-in by its file name.
func commandName(path string) string {
	if name := filepath.Base(path); strings.HasPrefix(name, "kubectl-") || name == completer {
		return "kubectl millrace"
	}
	return "millrace"
}
