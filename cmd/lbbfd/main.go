// SPDX-License-Identifier: Apache-2.0

// Command lbbfd runs the BFD sessions of a node (RFC 5880) as a sidecar of lbagent.
package main

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"runtime"
	"runtime/debug"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/cmd/internal/program"
	"github.com/millrace-lb/millrace/lbagent/bfd"
)

var version string

// memoryLimit, in bytes, is when the garbage collector runs, which is off otherwise, so that it never
// delays a packet. The process allocates nothing per packet.
const memoryLimit = 64 << 20

func main() {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	// More threads than goroutines: the sending thread must never wait.
	runtime.GOMAXPROCS(4)
	program.Main("lbbfd", run)
}

func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	flags := program.Flags("lbbfd", stderr)
	config := register(flags)
	if done, err := program.Parse(flags, arguments, version, stdout); done || err != nil {
		return err
	}
	logger := logr.FromSlogHandler(slog.NewJSONHandler(stderr, nil))
	return bfd.Run(ctx, *config, logger)
}

func register(flags *flag.FlagSet) *bfd.Config {
	config := bfd.DefaultConfig()
	flags.StringVar(&config.Socket, "socket", config.Socket, "path of the socket for the agent")
	flags.StringVar(&config.State, "state", config.State, "path of the file that passes sessions to the next process")
	flags.DurationVar(&config.RestartTime, "restart-time", config.RestartTime,
		"time for which routers wait for the next process during a restart; 0: disabled")
	return &config
}
