// SPDX-License-Identifier: Apache-2.0

// Command liveapi serves the aggregated API live.millrace.io.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	"github.com/millrace-lb/millrace/api/live"
	"github.com/millrace-lb/millrace/cmd/internal/program"
	"github.com/millrace-lb/millrace/liveapi"
)

var version string

// garbage is a low GOGC, because agents' answers are decoded and discarded every five seconds.
const garbage = 30

func main() {
	// The user's value takes precedence.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	program.Main("liveapi", run)
}

func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	flags := program.Flags("liveapi", stderr)
	configuration, port := register(flags)
	if done, err := program.Parse(flags, arguments, version, stdout); done || err != nil {
		return err
	}
	if *port == 0 || *port > 65535 {
		return fmt.Errorf("--agent-port: %d is not a port", *port)
	}
	configuration.AgentPort = uint16(*port)

	logger := logr.FromSlogHandler(slog.NewJSONHandler(stderr, nil))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)

	var err error
	if configuration.REST, err = ctrl.GetConfig(); err != nil {
		return fmt.Errorf("configure the API client: %w: run in a cluster or set --kubeconfig", err)
	}
	configuration.Kubeconfig = flags.Lookup(config.KubeconfigFlagName).Value.String()
	return liveapi.Run(ctx, *configuration, logger)
}

func register(flags *flag.FlagSet) (*liveapi.Config, *uint) {
	c := &liveapi.Config{}
	flags.StringVar(&c.Address, "bind-address", ":8443", "listen address for the API, probes and metrics")
	flags.StringVar(&c.CertDir, "certificates", "/etc/millrace/live",
		"directory with tls.crt and tls.key of the server, and client.crt, client.key and ca.crt for connections to agents")
	flags.BoolVar(&c.Relay, "relay", c.Relay,
		"send changes of EndpointSlices to agents in place of the API server (their --relay)")
	port := flags.Uint("agent-port", live.Port, "port of the agents (their --live-bind-address)")
	program.RegisterKubeconfig(flags, config.RegisterFlags)
	return c, port
}
