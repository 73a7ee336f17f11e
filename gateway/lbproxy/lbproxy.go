// SPDX-License-Identifier: Apache-2.0

// Package lbproxy is a proxy as it runs in a pod: it gets its configuration from the
// controller, serves it, and says whether it is ready.
package lbproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/millrace-lb/millrace/api/serving"
	"github.com/millrace-lb/millrace/gateway/distribution"
	"github.com/millrace-lb/millrace/gateway/proxy"
)

// Config is how a proxy runs.
type Config struct {
	// Controller is "host:port" of the controller, ControllerName the name in its certificate.
	Controller, ControllerName string
	// ControllerCA is a file with the CAs that sign this certificate, Token one with what
	// proves the proxy. Both are read at each connection: they change.
	ControllerCA, Token string
	// Store is a file for the last configuration, empty for none. It holds private keys.
	Store string
	// AdminAddress is "host:port" for /healthz, /readyz and /metrics.
	AdminAddress string
	// Tracing is where spans go.
	Tracing Tracing
	// Proxy is how it serves. Its Tracer comes from Tracing.
	Proxy proxy.Settings
}

// Run serves until the context ends, and then until the connections have been drained.
func Run(ctx context.Context, config Config) error {
	log := config.Proxy.Log
	defer tuneCollector()()
	boundMemory(memoryLimit(cgroups), &config.Proxy)
	tracer, exported, err := config.Tracing.start(ctx, log)
	if err != nil {
		return err
	}
	defer exported()
	config.Proxy.Tracer = tracer
	served := proxy.New(config.Proxy)
	admin, err := serving.Listen(config.AdminAddress, serving.Local())
	if err != nil {
		return fmt.Errorf("serve probes: %w", err)
	}
	probes := serving.NewHTTP(served.Admin())
	probed := make(chan error, 1)
	go func() { probed <- probes.Serve(admin) }()
	defer probes.Close()

	// Endpoints change while the proxy drains, too: it is told of them to its end.
	following, forget := context.WithCancel(context.WithoutCancel(ctx))
	defer forget()
	followed := make(chan error, 1)
	go func() { followed <- follower(config, served).Run(following) }()
	log.Info("waiting for the configuration", "controller", config.Controller)
	select {
	case <-ctx.Done():
	case err := <-probed:
		return fmt.Errorf("serve probes at %s: %w", config.AdminAddress, err)
	case err := <-followed:
		return err
	}
	log.Info("draining")
	err = served.Shutdown(following)
	forget()
	return errors.Join(err, <-followed)
}

// follower gets the configuration and has it served.
func follower(config Config, served *proxy.Proxy) *distribution.Client {
	client := &distribution.Client{
		Address:   config.Controller,
		Transport: newTrust(config.ControllerCA, config.ControllerName),
		Token:     func() (string, error) { return readToken(config.Token) },
		Apply:     apply(served, config.Proxy.Log),
		Refused:   served.Refused,
		Log:       config.Proxy.Log,
	}
	if config.Store != "" {
		client.Store = &distribution.Store{Path: config.Store}
	}
	return client
}

func readToken(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(content)), nil
}

// apply has a version served.
func apply(served *proxy.Proxy, log *slog.Logger) func(distribution.Update) error {
	return func(update distribution.Update) error {
		if err := served.Apply(proxy.Update{
			Version: update.Version, Whole: update.Whole, Resources: update.Changed, Removed: update.Removed,
		}); err != nil {
			return err
		}
		if update.Whole {
			log.Info("serving the first configuration", "version", update.Version, "resources", len(update.Changed))
		}
		return nil
	}
}
