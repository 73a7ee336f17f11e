// SPDX-License-Identifier: Apache-2.0

// Package lbproxy runs a proxy in a pod: its configuration, traffic, probes and metrics.
package lbproxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/millrace-lb/millrace/api/serving"
	"github.com/millrace-lb/millrace/gateway/distribution"
	"github.com/millrace-lb/millrace/gateway/proxy"
)

// Config configures a proxy.
type Config struct {
	// Controller is the controller's "host:port", ControllerName the DNS name in its certificate.
	Controller, ControllerName string
	// ControllerCA and Token are files, read for each connection because they are rotated.
	ControllerCA, Token string
	// Store is the file of the last configuration; empty disables it. It contains private keys.
	Store string
	// AdminAddress is the "host:port" of /healthz, /readyz and /metrics, over HTTPS.
	AdminAddress string
	Tracing      Tracing
	// Proxy configures the data path. Its Tracer is set from Tracing.
	Proxy proxy.Settings
}

// Run serves until the context ends and then drains the connections.
func Run(ctx context.Context, config Config) error {
	log := config.Proxy.Log
	defer tuneCollector()()
	limitMemory(memoryLimit(cgroups), &config.Proxy)
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
	probes, err := newAdmin(served.Admin(), config.ControllerCA)
	if err != nil {
		return fmt.Errorf("serve probes: %w", errors.Join(err, admin.Close()))
	}
	probed := make(chan error, 1)
	go func() { probed <- probes.ServeTLS(admin, "", "") }()
	defer probes.Close()

	// Endpoints also change during draining, so the client runs until its end.
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

func follower(config Config, served *proxy.Proxy) *distribution.Client {
	client := &distribution.Client{
		Address:   config.Controller,
		Transport: newTrust(config.ControllerCA, config.ControllerName),
		Token:     func() (string, error) { return readToken(config.Token) },
		Apply: func(update distribution.Update) {
			served.Apply(proxy.Update{
				Version: update.Version, Whole: update.Whole, Resources: update.Changed, Removed: update.Removed,
			})
			if update.Whole {
				config.Proxy.Log.Info("serving the first configuration", "version", update.Version, "resources", len(update.Changed))
			}
		},
		Refused: served.Refused,
		Log:     config.Proxy.Log,
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
