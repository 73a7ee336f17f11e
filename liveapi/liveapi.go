// SPDX-License-Identifier: Apache-2.0

// Package liveapi serves the aggregated API live.millrace.io with current data of the agents.
package liveapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	wire "github.com/millrace-lb/millrace/api/relay"
	"github.com/millrace-lb/millrace/liveapi/internal/cluster"
	"github.com/millrace-lb/millrace/liveapi/internal/collect"
	"github.com/millrace-lb/millrace/liveapi/internal/server"
	"github.com/millrace-lb/millrace/liveapi/internal/store"
	"github.com/millrace-lb/millrace/liveapi/relay"

	liverest "github.com/millrace-lb/millrace/liveapi/internal/rest"
)

// nodesEvery is the minimum interval between reads of the list of nodes.
const nodesEvery = time.Second

// Config configures the server.
type Config struct {
	// REST configures the API client. Kubeconfig is the file that it was read from; empty for the pod's
	// ServiceAccount.
	REST       *rest.Config
	Kubeconfig string
	// Address is the address of the API, probes and metrics, "host:port".
	Address string
	// CertDir contains tls.crt and tls.key, and for connections to agents client.crt, client.key and ca.crt.
	CertDir   string
	AgentPort uint16
	// Relay enables the relay of EndpointSlices (api/relay).
	Relay bool
}

// Run runs the server until the context ends, and then returns nil.
func Run(ctx context.Context, configuration Config, logger logr.Logger) error {
	copied, err := cluster.New(configuration.REST)
	if err != nil {
		return err
	}
	live := store.New()
	collector := collect.New(collect.Options{
		Store: live, Directory: configuration.CertDir, Port: configuration.AgentPort,
		Report: func(node string, err error) {
			if err != nil {
				logger.Info("An agent does not answer; retrying", "node", node, "error", err.Error())
				return
			}
			logger.Info("The agent answers again", "node", node)
		},
	})
	group, ctx := errgroup.WithContext(ctx)
	served, err := server.New(server.Options{
		Address: configuration.Address, CertDir: configuration.CertDir, Kubeconfig: configuration.Kubeconfig,
		Storage: liverest.Storage(liverest.Sources{Store: live, Cluster: copied, Collector: collector}),
		Synced:  copied.Synced,
		Streams: streams(ctx, group, configuration, logger.WithName("relay")), StreamAudience: wire.Audience,
	})
	if err != nil {
		return err
	}
	group.Go(func() error { return ended(ctx, "watch the API server", copied.Start(ctx)) })
	group.Go(func() error { return ended(ctx, "query the agents", followNodes(ctx, copied, collector)) })
	group.Go(func() error { return ended(ctx, "serve the API", served.Run(ctx)) })
	return group.Wait()
}

func streams(ctx context.Context, group *errgroup.Group, configuration Config, logger logr.Logger) map[string]http.Handler {
	if !configuration.Relay {
		return nil
	}
	log := &relay.Log{}
	group.Go(func() error {
		return ended(ctx, "watch EndpointSlices", relay.Copy(ctx, configuration.REST, log, logger))
	})
	return map[string]http.Handler{wire.PathEndpointSlices: relay.NewHandler(ctx, log, logger)}
}

func ended(ctx context.Context, part string, err error) error {
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		err = errors.New("ended unexpectedly")
	}
	return fmt.Errorf("%s: %w", part, err)
}

func followNodes(ctx context.Context, copied *cluster.Cluster, collector *collect.Collector) error {
	if !copied.Synced(ctx) {
		return errors.New("the caches of API objects are not synced")
	}
	for {
		nodes, err := copied.Nodes(ctx)
		if err != nil {
			return err
		}
		collector.SetNodes(ctx, nodes)
		for _, wait := range []func() bool{
			func() bool { return received(ctx, copied.NodesChanged()) },
			func() bool { return received(ctx, time.After(nodesEvery)) },
		} {
			if !wait() {
				return nil
			}
		}
	}
}

func received[T any](ctx context.Context, from <-chan T) bool {
	select {
	case <-ctx.Done():
		return false
	case <-from:
		return true
	}
}
