// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/cachesync"
	"github.com/millrace-lb/millrace/lbagent/internal/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/health"
	"github.com/millrace-lb/millrace/lbagent/internal/hostcheck"
	"github.com/millrace-lb/millrace/lbagent/internal/natexempt"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
	"github.com/millrace-lb/millrace/lbagent/internal/shutdown"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
	"github.com/millrace-lb/millrace/lbagent/internal/sweep"
)

type workers struct {
	loop      *loop
	writer    *status.Writer
	speaker   *bgp.Server
	cacheSync *cachesync.Gate
	hops      *netdev.HopWatcher
	exempt    *natexempt.Manager
	host      *hostcheck.Checks
	bfd       *control.Client
	prober    *probe.Prober
	canaries  *canary.Prober
	handover  *shutdown.Handover
	// links receives a value after a change of the host's network.
	links chan struct{}
}

// runUntil runs the workers until ctx is done and, unless another agent follows, the routes are handed over.
func (w workers) runUntil(ctx context.Context, config Config, p parts) error {
	working, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	go func() {
		defer end()
		select {
		case <-working.Done():
		case <-ctx.Done():
			w.handover.Run(working, config.DrainDelay, config.WithdrawDelay, func() { notify.Signal(w.links) })
		}
	}()
	return w.run(working, config, p)
}

func (w workers) run(ctx context.Context, config Config, p parts) error {
	loop, links := w.loop, w.links
	group, ctx := errgroup.WithContext(ctx)
	if err := startServers(ctx, group, config, p, w); err != nil {
		return err
	}
	group.Go(func() error { return w.writer.Run(ctx) })
	group.Go(func() error { return notify.Forward(ctx, p.objects.Reported(), w.writer.Wake) })
	group.Go(func() error { return p.source.wait(ctx) })
	group.Go(func() error { return loop.checkpointer.Run(ctx) })
	group.Go(func() error { return loop.history.Run(ctx, config.Version) })
	group.Go(func() error {
		_ = w.handover.FindDaemonSet(ctx)
		return nil
	})
	group.Go(func() error { return w.hops.Run(ctx) })
	group.Go(func() error { return runExemption(ctx, w.exempt, config.NATExempt) })
	group.Go(func() error { return sweep.Run(ctx, p.datapath, loop.logger) })
	if config.ServiceProxy == dataplane.ServiceProxyFrom {
		group.Go(func() error { return sweep.RunProxied(ctx, serviceProxy{p.datapath}, loop.logger) })
	}
	group.Go(func() error { return netdev.Watch(ctx, func() { notify.Signal(links) }) })
	group.Go(func() error { return w.host.Run(ctx, func() { notify.Signal(links) }) })
	if w.prober != nil {
		group.Go(func() error { return w.prober.Run(ctx) })
		group.Go(func() error {
			return notify.Forward(ctx, w.prober.Changed(), func() {
				loop.nodeHealth.MarkDown(p.datapath.SetDown)
				notify.Signal(links)
			})
		})
		group.Go(func() error { return notify.Forward(ctx, w.prober.Learned(), loop.checkpointer.Touch) })
	}
	group.Go(func() error { return w.canaries.Run(ctx) })
	group.Go(func() error { return notify.Forward(ctx, w.canaries.Changed(), func() { notify.Signal(links) }) })
	if loop.routes.Duplicates != nil {
		group.Go(func() error { return loop.routes.Duplicates.Run(ctx) })
	}
	group.Go(func() error { return loop.routes.Layer2.Run(ctx) })
	if loop.healthPorts != nil {
		group.Go(func() error { return loop.healthPorts.Run(ctx) })
	}
	if config.BFDSocket != "" {
		group.Go(func() error { return w.bfd.Run(ctx) })
		group.Go(func() error { return loop.detector.Run(ctx, w.bfd.Changed(), func() { notify.Signal(links) }) })
	}
	group.Go(func() error { return loop.health.Watch(ctx, health.WatchEvery, loop.logger, loop.passes.Stalled) })
	group.Go(func() error {
		// Without the initial lists, objects would count as removed.
		if err := loop.checkpointer.Await(ctx); err != nil {
			return err
		}
		w.cacheSync.MarkCurrent()
		return loop.run(ctx, p.objects.Changed(), links, w.speaker.Changed())
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func newWriter(p parts, logger logr.Logger) *status.Writer {
	return status.NewWriter(p.bootID,
		status.Target[*millracev1beta1.LBNode]{
			Observed: p.objects.LBNode, Update: status.Client[*millracev1beta1.LBNode](p.clients.Millrace, "lbnodes"),
		},
		status.Target[*millracev1beta1.LBNodeReport]{
			Observed: p.objects.Report, Update: status.Client[*millracev1beta1.LBNodeReport](p.clients.Millrace, "lbnodereports"),
		}, logger)
}

// reportHops logs when prepared next hops become unavailable or available. Packets are forwarded either way.
func reportHops(logger logr.Logger, err error) {
	if err != nil {
		logger.Error(err, "Next hops cannot be prepared; the kernel resolves them for each packet meanwhile")
		return
	}
	logger.Info("Next hops are prepared again")
}

func newExemption(filter int, logger logr.Logger, changed chan<- struct{}) *natexempt.Manager {
	return &natexempt.Manager{
		Filter: filter,
		Changed: func(err error) {
			reportExempt(logger, err)
			notify.Signal(changed)
		},
	}
}

// runExemption removes the rule of a previous process if the exemption is disabled.
func runExemption(ctx context.Context, keeper *natexempt.Manager, wanted bool) error {
	if wanted {
		return keeper.Run(ctx)
	}
	if err := natexempt.Remove(); err != nil {
		return fmt.Errorf("--nat-exempt=false: %w", err)
	}
	return nil
}

func reportExempt(logger logr.Logger, err error) {
	if err != nil {
		logger.Error(err, "Replies are not exempt from NAT")
		return
	}
	logger.Info("Replies are exempt from NAT")
}
