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
	"golang.org/x/term"
	"k8s.io/klog/v2"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitOK = iota
	exitError
	// exitProblems is that of `status --exit-code` where there are problems.
	exitProblems
)

// environment is what a run takes from the outside.
type environment struct {
	// args are those of the process, its own name first.
	args           []string
	stdout, stderr io.Writer
	// width of the screen in characters; 0 is without limit. height is 0 where
	// there is no screen.
	width, height int
	colour        bool
}

func main() {
	// client-go logs each stream that is cut off, also where this program ends it. What
	// fails comes back as an error.
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, processEnvironment())
	stop()
	os.Exit(code)
}

// processEnvironment looks at the terminal, if there is one. Without one the
// text is made for 100 columns; https://no-color.org says when not to colour.
func processEnvironment() environment {
	env := environment{args: os.Args, stdout: os.Stdout, stderr: os.Stderr, width: 100}
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
	root.SetArgs(env.args[1:])
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errProblems):
		return exitProblems
	default:
		fmt.Fprintf(env.stderr, "millrace: %v\n", err)
		return exitError
	}
}

// calledAs is how the user calls this program: kubectl runs a plug-in by the
// name of its file.
func calledAs(path string) string {
	if strings.HasPrefix(filepath.Base(path), "kubectl-") {
		return "kubectl millrace"
	}
	return "millrace"
}
