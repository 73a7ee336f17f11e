// SPDX-License-Identifier: Apache-2.0

// Command lbbfd holds the BFD sessions of a node (RFC 5880). It runs beside lbagent, which
// says which sessions there should be.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/bfd"
)

// version is set at build time.
var version = "dev"

// The process allocates nothing per packet, and some KiB each time the agent asks. Without a
// collector that runs by itself no packet waits for one; the limit is for what is not foreseen.
const memoryLimit = 64 << 20

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	// The thread that sends must never wait for another one that was not scheduled: a few
	// more than can be at work at once.
	runtime.GOMAXPROCS(4)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "lbbfd: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	config := bfd.DefaultConfig()
	flags := flag.NewFlagSet("lbbfd", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&config.Socket, "socket", config.Socket, "path of the socket at which the agent asks")
	flags.StringVar(&config.State, "state", config.State, "path of the file in which sessions are handed over to the next process")
	flags.DurationVar(&config.RestartTime, "restart-time", config.RestartTime,
		"how long routers wait for the next process when this one is replaced; 0: not at all")
	showVersion := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: all settings are flags", flags.Arg(0))
	}
	if *showVersion {
		_, err := fmt.Fprintln(stdout, version)
		return err
	}
	logger := logr.FromSlogHandler(slog.NewJSONHandler(stderr, nil))
	return bfd.Run(ctx, config, logger)
}
