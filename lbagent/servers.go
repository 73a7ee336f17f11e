// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/lbagent/internal/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/live"
	"github.com/millrace-lb/millrace/lbagent/internal/metrics"
)

// startServers serves metrics, health, the console and the aggregated API until ctx is done.
func startServers(ctx context.Context, group *errgroup.Group, config Config, p parts, w workers) error {
	l := w.loop
	if config.HealthBindAddress != "0" {
		listener, err := metrics.Listen(config.HealthBindAddress, "health-probe-bind-address")
		if err != nil {
			return err
		}
		checks := metrics.Health{Alive: l.health.Alive, Ready: l.health.Ready}
		group.Go(func() error { return metrics.ServeHealth(ctx, listener, checks) })
	}
	if config.MetricsBindAddress != "0" {
		if err := serveMetrics(ctx, group, config, p, w); err != nil {
			return err
		}
	}
	console := newConsole(p.datapath, w)
	if config.Socket != "" || config.LiveBindAddress != "0" {
		group.Go(func() error {
			serveConsole(ctx, config.Socket, console, p.datapath, l.logger.WithName("console"))
			return nil
		})
	}
	if config.LiveBindAddress != "0" {
		listener, err := metrics.Listen(config.LiveBindAddress, "live-bind-address")
		if err != nil {
			return err
		}
		server := live.NewServer(live.NewSource(console, p.datapath), l.logger.WithName("live"))
		group.Go(func() error { return server.Serve(ctx, listener, live.NewCertificates(config.LiveCertificates)) })
	}
	return nil
}

func serveMetrics(ctx context.Context, group *errgroup.Group, config Config, p parts, w workers) error {
	l := w.loop
	listener, err := metrics.Listen(config.MetricsBindAddress, "metrics-bind-address")
	if err != nil {
		return err
	}
	protection, err := metricsProtection(ctx, group, config, p.clients)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	collector := metrics.NewCollector(config.Version, config.FrontendMetrics, p.datapath, w.speaker.Sessions, l.published.Services)
	group.Go(func() error {
		collectors := []prometheus.Collector{
			collector, l.passes, metrics.NewBFD(l.detector.Report), metrics.NewLayer2(l.routes.Layer2.Counts),
			metrics.NewHistory(l.history.Metrics), metrics.NewCanaries(w.canaries.Counters), metrics.NewRefused(w.speaker.Refused),
		}
		if w.prober != nil {
			collectors = append(collectors, metrics.NewWatch(w.prober))
		}
		if p.clients.Relay != nil {
			collectors = append(collectors, metrics.NewRelay(p.clients.Relay.Connected))
		}
		return metrics.Serve(ctx, listener, protection, collectors...)
	})
	return nil
}

func newConsole(datapath *dataplane.Dataplane, w workers) *console.Server {
	l := w.loop
	return &console.Server{
		DataPlane: datapath, Hub: console.NewHub(), Directory: l.published.Directory, Decisions: l.published.Decisions, Speaker: w.speaker,
		Hosts: l.routes.Duplicates.Scan, History: l.history.Query,
	}
}

// serveConsole samples drops, and serves console clients at the socket, if any, until ctx is done. Its
// failures are logged, because forwarding does not depend on it.
func serveConsole(ctx context.Context, socket string, server *console.Server, datapath *dataplane.Dataplane, logger logr.Logger) {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		samples, err := datapath.OpenDrops()
		if err == nil {
			err = server.Hub.Run(ctx, samples)
		}
		if err != nil && ctx.Err() == nil {
			logger.Error(err, "Dropped packets are counted, but not sampled until the agent is restarted")
		}
	})
	if socket == "" {
		return
	}
	group.Go(func() { listenConsole(ctx, socket, server, logger) })
}

const listenRetry = 30 * time.Second

func listenConsole(ctx context.Context, socket string, server *console.Server, logger logr.Logger) {
	for logged := false; ctx.Err() == nil; {
		listener, err := console.Listen(socket)
		if err == nil {
			if logged {
				logger.Info("The console is served again")
			}
			logged = false
			err = server.Serve(ctx, listener)
		}
		if err != nil && ctx.Err() == nil && !logged {
			logged = true
			logger.Error(err, "The console is not served: no drops, top, trace, vips, bgp and duplicates; "+
				"check free space and write access at --socket; will retry", "socket", socket, "every", listenRetry)
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenRetry):
		}
	}
}
