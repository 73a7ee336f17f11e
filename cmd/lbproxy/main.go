// SPDX-License-Identifier: Apache-2.0

// Command lbproxy is a layer 7 proxy without API permissions, configured and deployed by cmd/gateway.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"github.com/millrace-lb/millrace/cmd/internal/program"
	"github.com/millrace-lb/millrace/gateway/lbproxy"
	"github.com/millrace-lb/millrace/gateway/proxy"
)

var version string

func main() {
	program.Main("lbproxy", run)
}

func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	flags := program.Flags("lbproxy", stderr)
	c, accessLog := register(flags)
	if done, err := program.Parse(flags, arguments, version, stdout); done || err != nil {
		return err
	}
	for name, value := range map[string]string{"controller": c.Controller, "controller-ca": c.ControllerCA, "token": c.Token} {
		if value == "" {
			return fmt.Errorf("--%s is required: the configuration comes from the controller", name)
		}
	}
	if err := c.Tracing.Validate(); err != nil {
		return err
	}
	c.Proxy.Log = slog.New(slog.NewJSONHandler(stderr, nil))
	if *accessLog {
		c.Proxy.AccessLog = slog.New(slog.NewJSONHandler(stdout, nil))
	}
	return lbproxy.Run(ctx, *c)
}

func register(flags *flag.FlagSet) (c *lbproxy.Config, accessLog *bool) {
	c = &lbproxy.Config{Proxy: proxy.Defaults()}
	flags.StringVar(&c.Controller, "controller", "", "host:port of the controller")
	flags.StringVar(&c.ControllerName, "controller-name", "", "name in the controller's certificate")
	flags.StringVar(&c.ControllerCA, "controller-ca", "", "file with the CA certificates that verify the controller")
	flags.StringVar(&c.Token, "token", "", "file with the token that authenticates this proxy")
	flags.StringVar(&c.Store, "store", "", "file that stores the last configuration, including private keys; empty: disabled")
	flags.StringVar(&c.Proxy.Address, "bind-address", "", "listen address for clients, without a port; empty: all addresses")
	flags.StringVar(&c.AdminAddress, "admin-bind-address", ":15090", "listen address for /healthz, /readyz and /metrics over HTTPS; /metrics requires a client certificate of the controller's CA")
	flags.DurationVar(&c.Proxy.ResponseTimeout, "response-timeout", c.Proxy.ResponseTimeout, "time limit of a backend until the response headers; 0: unlimited")
	flags.DurationVar(&c.Proxy.DrainWait, "drain-delay", c.Proxy.DrainWait, "time after SIGTERM during which new connections are accepted")
	flags.DurationVar(&c.Proxy.DrainGrace, "drain-timeout", c.Proxy.DrainGrace, "time limit of open requests afterwards")
	flags.StringVar(&c.Tracing.Endpoint, "tracing-endpoint", "", "OTLP/gRPC collector for spans, such as http://HOST:PORT; empty: disabled")
	flags.Float64Var(&c.Tracing.Ratio, "tracing-ratio", 0.01, "fraction of requests to sample, from 0 to 1")
	flags.BoolVar(&c.Proxy.RouteMetrics, "route-metrics", false, "also count requests per rule")
	accessLog = flags.Bool("access-log", false, "write an access log to standard output")
	return c, accessLog
}
