// SPDX-License-Identifier: Apache-2.0

// Package lbagent is the agent of a node. It keeps the node's data plane and
// BGP sessions as the API server's objects say. It writes the state of both to
// the node's LBNodeReport.
package lbagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/api/flowhash"
	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/detector"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/checkpoint"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/duplicate"
	"github.com/millrace-lb/millrace/lbagent/internal/health"
	"github.com/millrace-lb/millrace/lbagent/internal/healthport"
	"github.com/millrace-lb/millrace/lbagent/internal/history/recorder"
	"github.com/millrace-lb/millrace/lbagent/internal/hostcheck"
	"github.com/millrace-lb/millrace/lbagent/internal/keyring/keeper"
	"github.com/millrace-lb/millrace/lbagent/internal/l2"
	"github.com/millrace-lb/millrace/lbagent/internal/live"
	"github.com/millrace-lb/millrace/lbagent/internal/metrics"
	"github.com/millrace-lb/millrace/lbagent/internal/natexempt"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
	"github.com/millrace-lb/millrace/lbagent/internal/seed"
	"github.com/millrace-lb/millrace/lbagent/internal/source"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
	"github.com/millrace-lb/millrace/lbagent/internal/uplink"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
	"github.com/millrace-lb/millrace/lbagent/internal/watch"
)

// tellTimeout is how long an agent that cannot work waits until the other nodes know that
// its node has booted.
const tellTimeout = 5 * time.Second

// lockTimeout is how long an agent waits for the one before. That one has 20 s to end
// (terminationGracePeriodSeconds of config/lbagent).
const lockTimeout = 30 * time.Second

// Run runs the agent until ctx is done, and returns nil then. What it has
// programmed stays: the kernel goes on forwarding, and routers that help with
// graceful restart keep the routes until an agent is back.
func Run(ctx context.Context, config Config, logger logr.Logger) error {
	if err := config.validate(); err != nil {
		return err
	}
	clients, err := source.NewClients(config.Kubeconfig, "millrace-lbagent/"+config.Version)
	if err != nil {
		return err
	}
	objects, err := source.New(clients, config.NodeName)
	if err != nil {
		return err
	}
	bootID, err := status.BootID()
	if err != nil {
		return err
	}
	lock, err := lockDataplane(ctx, config.PinRoot, logger)
	if err != nil {
		return err
	}
	// The last that is done: the next agent may be waiting.
	defer lock.Close()
	// The other nodes must not wait for the programs to load.
	told := make(chan struct{})
	go func() {
		defer close(told)
		status.TellBoot(ctx, clients.Millrace, config.NodeName, bootID, logger.WithName("status"))
	}()
	flowSeed, err := seed.OfNode(ctx, config.PinRoot, clients.TunnelKey, logger.WithName("seed"))
	if err != nil {
		return explainRefusal(err, securityContext)
	}
	withSeed := config.Dataplane()
	withSeed.Seed = flowSeed
	datapath, err := dataplane.Open(withSeed)
	if err != nil {
		// It will fail again in the next process, which may have no more time to tell.
		select {
		case <-told:
		case <-time.After(tellTimeout):
		}
		return explainRefusal(err, securityContext)
	}
	defer func() {
		if err := datapath.Close(); err != nil {
			logger.Error(err, "Data plane not closed cleanly")
		}
	}()
	return serve(ctx, config, parts{clients, objects, datapath, bootID, flowSeed}, logger)
}

// lockDataplane waits until no other agent of the node has the data plane.
func lockDataplane(ctx context.Context, pinRoot string, logger logr.Logger) (io.Closer, error) {
	limited, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	lock, err := dataplane.Lock(limited, pinRoot, func() {
		logger.Info("Another agent of this node has the data plane: waiting for its end", "pins", pinRoot, "timeout", lockTimeout)
	})
	switch {
	case errors.Is(err, dataplane.ErrLocked) && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, dataplane.ErrLocked):
		return nil, fmt.Errorf("%w, and did not end in %s; is Millrace installed twice, or does a container of a deleted pod still run?",
			err, lockTimeout)
	default:
		return lock, explainRefusal(err, securityContext)
	}
}

// parts are what an agent's work needs that can fail to be there.
type parts struct {
	clients  *source.Clients
	objects  *source.Source
	datapath *dataplane.Dataplane
	bootID   string
	seed     flowhash.Seed
}

// serve does the agent's work until ctx is done.
func serve(ctx context.Context, config Config, p parts, logger logr.Logger) error {
	have, err := p.datapath.Dump()
	if err != nil {
		return err
	}
	adoption := p.datapath.Adoption()
	logger.Info("Data plane open", "maps", adoption.Kind, "reason", adoption.Reason, "copied", adoption.Copied, "emptied", adoption.Emptied,
		"frontends", len(have.Frontends), "endpoints", len(have.Endpoints))
	speaker := bgp.New(bgp.Config{
		// Frontends in the maps have been forwarded all the time.
		Restarting: len(have.Frontends) > 0,
		Logger:     logger.WithName("bgp"),
	})
	writer := newWriter(p, logger.WithName("status"))
	hops := newHops(p.datapath, logger)
	client, process := newBFD(config.BFDSocket)
	links := make(chan struct{}, 1)
	exempt := newExemption(p.datapath.NATExempt(), logger, links)
	host := hostcheck.New(p.datapath, exempt.Err, config.VethTransmit, logger)
	checkpointer := checkpoint.NewCheckpointer(p.objects, checkpoint.Config{
		Directory: config.StateDir, BootID: p.bootID, Node: config.NodeName,
		Unforwarded: adoption.Kind == dataplane.Created, Logger: logger.WithName("checkpoint"),
	})
	watching := newProber(config, checkpointer, logger.WithName("watch"))
	finder := netdev.NewFinder(config.Uplinks)
	monitor := health.New(time.Now)
	loop := &loop{
		checkpointer:  checkpointer,
		ending:        newEnding(p.clients.Installed, p.clients.ShutsDown(config.NodeName), logger),
		guard:         removalguard.New(config.RemovalHold, checkpointer.Former()),
		readiness:     newReadiness(checkpointer.Former()),
		limits:        config.limits(),
		withdrawDelay: config.WithdrawDelay,
		drainDelay:    config.DrainDelay,
		unreadyDelay:  config.UnreadyDelay,
		objects:       checkpointer.Objects,
		uplinks:       uplink.New(finder.Find, p.datapath, logger),
		dataplane:     p.datapath,
		take:          takeFrom(p.datapath),
		hops:          hops,
		speaker:       speaker,
		detector:      detector.New(process, speaker.Down, logger.WithName("bfd")),
		keys:          keeper.New(p.datapath, p.seed, p.objects.Report, checkpointer.Generations, logger.WithName("tunnel")),
		status:        writer,
		logger:        logger,
		health:        monitor,
		passes:        metrics.NewPasses(),
		verifier:      &verifier{due: time.Now().Add(verifyEvery)},
		names:         newDirectory(config.NodeName),
		have:          have,
		planner:       plan.NewPlanner(have).HashBy(p.seed.Constants()),
		due:           map[removal]time.Time{},
		announced:     adopted(have),
		observation:   status.Observation{Version: config.Version},
		host:          host,
		layer2:        l2.NewAnswerer(l2.NewHeartbeat(p.datapath.Beat, monitor.Alive), logger.WithName("l2")),
		networks:      uplink.NewNetworks(finder.Networks, netdev.Gateways),
	}
	if config.DuplicateDetection {
		loop.duplicates = duplicate.NewDetector(func() { wake.Notify(links) }, logger.WithName("duplicates"))
	}
	loop.watch = watch.New(proberOf(watching, loop.detector.Heard), p.datapath.SetProbeKeys, config.reportAfter, logger.WithName("watch"))
	loop.history = recorder.New(config.StateDir, recorder.Source{
		Sessions: speaker.Sessions, Drops: p.datapath.DropCounts, Services: loop.names.services,
	}, logger.WithName("history"))
	loop.healthPorts = newHealthPorts(config, monitor.Alive, logger.WithName("healthport"))
	canaries := canary.New(logger.WithName("canary"))
	loop.canaries = canaries
	return workers{loop, writer, speaker, hops, exempt, host, client, watching, canaries, links}.runUntil(ctx, config, p)
}

// newProber returns nil where nodes are not to be watched. It goes on with the nodes that the
// agent before knew, and has its own kept for the next one.
func newProber(config Config, checkpointer *checkpoint.Checkpointer, logger logr.Logger) *probe.Prober {
	if config.ProbePort == 0 {
		return nil
	}
	prober := probe.New(config.ProbePort, logger)
	prober.Resume(checkpointer.Nodes())
	checkpointer.KeepNodes(prober.Known)
	return prober
}

// proberOf is what a watch asks. What was heard of routers is the prober's witness.
func proberOf(prober *probe.Prober, heard func(now time.Time) time.Time) watch.Prober {
	if prober == nil {
		return nil
	}
	prober.Witness(heard)
	return prober
}

// newHealthPorts returns what answers at healthCheckNodePorts; nil where nothing is to.
func newHealthPorts(config Config, alive func() error, logger logr.Logger) *healthport.Server {
	if !config.HealthCheckNodePorts {
		return nil
	}
	return healthport.New(healthport.Config{
		ProxyPort: config.ServiceProxyPort, Patience: config.proxyPatience, Pause: healthport.ProxyPause, Retry: healthport.Retry,
		Alive: alive, Logger: logger,
	})
}

// newBFD returns a client of lbbfd at its socket, and what the agent sees of it: without a socket
// there is no such process.
func newBFD(socket string) (*control.Client, detector.Process) {
	client := control.NewClient(socket)
	if socket == "" {
		return client, detector.NoProcess{}
	}
	return client, client
}

func newHops(datapath *dataplane.Dataplane, logger logr.Logger) *netdev.HopWatcher {
	return netdev.NewHopWatcher(netdev.HopConfig{
		Set:          datapath.SetHops,
		SetEntrances: datapath.SetEntrances,
		Vouch:        datapath.Vouch,
		Report:       func(err error) { reportHops(logger, err) },
	})
}

// workers are what runs beside each other.
type workers struct {
	loop    *loop
	writer  *status.Writer
	speaker *bgp.Server
	hops    *netdev.HopWatcher
	exempt  *natexempt.Keeper
	host    *hostcheck.Checks
	bfd     *control.Client
	// prober is nil where nodes are not watched.
	prober   *probe.Prober
	canaries *canary.Prober
	// links has a value when something of the host has changed.
	links chan struct{}
}

// runUntil runs the workers until ctx is done and, where no other agent follows soon, the node has
// handed over its routes.
func (w workers) runUntil(ctx context.Context, config Config, p parts) error {
	working, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	go func() {
		defer end()
		select {
		case <-working.Done():
		case <-ctx.Done():
			w.loop.ending.end(working, config.DrainDelay, config.WithdrawDelay, func() { wake.Notify(w.links) })
		}
	}()
	return w.run(working, config, p)
}

// run runs the workers until ctx is done or one of them fails.
func (w workers) run(ctx context.Context, config Config, p parts) error {
	loop, links := w.loop, w.links
	group, ctx := errgroup.WithContext(ctx)
	if err := offer(ctx, group, config, p, w); err != nil {
		return err
	}
	group.Go(func() error { return w.writer.Run(ctx) })
	group.Go(func() error { return wake.Forward(ctx, p.objects.Reported(), w.writer.Wake) })
	group.Go(func() error { return p.objects.Run(ctx) })
	group.Go(func() error { return loop.checkpointer.Run(ctx) })
	group.Go(func() error { return loop.history.Run(ctx, config.Version) })
	group.Go(func() error {
		_ = loop.ending.learn(ctx)
		return nil
	})
	group.Go(func() error { return w.hops.Run(ctx) })
	group.Go(func() error { return runExemption(ctx, w.exempt, config.NATExempt) })
	group.Go(func() error { return sweepFlows(ctx, p.datapath, loop.logger) })
	group.Go(func() error { return netdev.Watch(ctx, func() { wake.Notify(links) }) })
	group.Go(func() error { return w.host.Run(ctx, func() { wake.Notify(links) }) })
	if w.prober != nil {
		group.Go(func() error { return w.prober.Run(ctx) })
		group.Go(func() error {
			return wake.Forward(ctx, w.prober.Changed(), func() {
				loop.watch.Mark(p.datapath.SetDown)
				wake.Notify(links)
			})
		})
		group.Go(func() error { return wake.Forward(ctx, w.prober.Learned(), loop.checkpointer.Touch) })
	}
	group.Go(func() error { return w.canaries.Run(ctx) })
	group.Go(func() error { return wake.Forward(ctx, w.canaries.Changed(), func() { wake.Notify(links) }) })
	if loop.duplicates != nil {
		group.Go(func() error { return loop.duplicates.Run(ctx) })
	}
	group.Go(func() error { return loop.layer2.Run(ctx) })
	if loop.healthPorts != nil {
		group.Go(func() error { return loop.healthPorts.Run(ctx) })
	}
	if config.BFDSocket != "" {
		group.Go(func() error { return w.bfd.Run(ctx) })
		group.Go(func() error { return loop.detector.Run(ctx, w.bfd.Changed(), func() { wake.Notify(links) }) })
	}
	group.Go(func() error { return loop.health.Watch(ctx, health.WatchEvery, loop.logger, loop.passes.Stalled) })
	group.Go(func() error {
		// What is not known yet must not be taken for what is gone.
		if err := loop.checkpointer.Await(ctx); err != nil {
			return err
		}
		return loop.run(ctx, p.objects.Changed(), links, w.speaker.Changed())
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func newWriter(p parts, logger logr.Logger) *status.Writer {
	return status.NewWriter(p.bootID,
		status.Target[*millracev1alpha1.LBNode]{
			Observed: p.objects.LBNode, Update: status.Client[*millracev1alpha1.LBNode](p.clients.Millrace, "lbnodes"),
		},
		status.Target[*millracev1alpha1.LBNodeReport]{
			Observed: p.objects.Report, Update: status.Client[*millracev1alpha1.LBNodeReport](p.clients.Millrace, "lbnodereports"),
		}, logger)
}

// reportHops tells when prepared next hops begin to be unavailable, and when they
// are there again. Packets are forwarded either way.
func reportHops(logger logr.Logger, err error) {
	if err != nil {
		logger.Error(err, "Next hops cannot be prepared; the kernel is asked for each packet meanwhile")
		return
	}
	logger.Info("Next hops are prepared again")
}

// newExemption keeps replies from NAT by a filter, and makes the loop run where that fails.
func newExemption(filter int, logger logr.Logger, changed chan<- struct{}) *natexempt.Keeper {
	return &natexempt.Keeper{
		Filter: filter,
		Changed: func(err error) {
			reportExempt(logger, err)
			wake.Notify(changed)
		},
	}
}

// runExemption takes away what is left of a former process where it is not wanted.
func runExemption(ctx context.Context, keeper *natexempt.Keeper, wanted bool) error {
	if wanted {
		return keeper.Run(ctx)
	}
	if err := natexempt.Remove(); err != nil {
		return fmt.Errorf("--nat-exempt=false: %w", err)
	}
	return nil
}

// reportExempt tells when replies begin to be left to NAT, and when they are exempt again.
func reportExempt(logger logr.Logger, err error) {
	if err != nil {
		logger.Error(err, "Replies are not exempt from NAT")
		return
	}
	logger.Info("Replies are exempt from NAT")
}

// offer serves metrics, health, the console and the aggregated API until ctx is done.
func offer(ctx context.Context, group *errgroup.Group, config Config, p parts, w workers) error {
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
		if err := offerMetrics(ctx, group, config, p, w); err != nil {
			return err
		}
	}
	console := newConsole(p.datapath, l)
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
		server := live.NewServer(&liveSource{console: console, datapath: p.datapath}, l.logger.WithName("live"))
		group.Go(func() error { return server.Serve(ctx, listener, live.NewCertificates(config.LiveCertificates)) })
	}
	return nil
}

func offerMetrics(ctx context.Context, group *errgroup.Group, config Config, p parts, w workers) error {
	l := w.loop
	listener, err := metrics.Listen(config.MetricsBindAddress, "metrics-bind-address")
	if err != nil {
		return err
	}
	protection, err := protect(ctx, group, config, p.clients)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	collector := metrics.NewCollector(config.Version, config.FrontendMetrics, p.datapath, l.speaker.Sessions, l.names.services)
	group.Go(func() error {
		collectors := []prometheus.Collector{
			collector, l.passes, metrics.NewBFD(l.detector.Report), metrics.NewLayer2(l.layer2.Counts),
			metrics.NewHistory(l.history.Metrics), metrics.NewCanaries(w.canaries.Counters), metrics.NewRefused(l.speaker.Refused),
		}
		if w.prober != nil {
			collectors = append(collectors, metrics.NewWatch(w.prober))
		}
		return metrics.Serve(ctx, listener, protection, collectors...)
	})
	return nil
}

// Cleanup detaches the programs from all interfaces and removes all maps, the rule of nftables
// and the checkpoint, as when Millrace is uninstalled from the node. It waits for the
// end of the agent, which would put back what is removed before.
func Cleanup(ctx context.Context, pinRoot, stateDir string, logger logr.Logger) error {
	lock, err := lockDataplane(ctx, pinRoot, logger)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err = dataplane.Remove(pinRoot); err != nil {
		err = fmt.Errorf("remove the data plane below %s: %w", pinRoot, err)
	}
	if stateDir != "" {
		err = errors.Join(err, recorder.Remove(stateDir), checkpoint.Remove(stateDir))
	}
	return errors.Join(err, natexempt.Remove())
}

// CheckClean fails as long as Cleanup has not removed everything, or an agent has
// put it there again.
func CheckClean(pinRoot string) error {
	_, err := os.Lstat(pinRoot)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		left, err := natexempt.Left()
		if left {
			err = fmt.Errorf("the table %s is still in nftables: run cleanup, after the agent has ended", natexempt.Table)
		}
		return err
	case err != nil:
		return fmt.Errorf("look for maps of the data plane at %s: %w", pinRoot, err)
	}
	return fmt.Errorf("maps of the data plane are still pinned at %s: run cleanup, after the agent has ended", pinRoot)
}
