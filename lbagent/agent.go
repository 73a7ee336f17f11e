// SPDX-License-Identifier: Apache-2.0

// Package lbagent implements the node agent. It reconciles the node's data plane and BGP sessions with the
// objects of the API server and reports the state of both in the node's LBNodeReport.
package lbagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/detector"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/cachesync"
	"github.com/millrace-lb/millrace/lbagent/internal/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/checkpoint"
	"github.com/millrace-lb/millrace/lbagent/internal/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dad"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/health"
	"github.com/millrace-lb/millrace/lbagent/internal/healthport"
	"github.com/millrace-lb/millrace/lbagent/internal/history/recorder"
	"github.com/millrace-lb/millrace/lbagent/internal/hostcheck"
	"github.com/millrace-lb/millrace/lbagent/internal/keyring/manager"
	"github.com/millrace-lb/millrace/lbagent/internal/l2"
	"github.com/millrace-lb/millrace/lbagent/internal/metrics"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/nodehealth"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
	"github.com/millrace-lb/millrace/lbagent/internal/preflight"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
	"github.com/millrace-lb/millrace/lbagent/internal/reconcile"
	"github.com/millrace-lb/millrace/lbagent/internal/retention"
	"github.com/millrace-lb/millrace/lbagent/internal/routerdiscovery"
	"github.com/millrace-lb/millrace/lbagent/internal/routes"
	"github.com/millrace-lb/millrace/lbagent/internal/seed"
	"github.com/millrace-lb/millrace/lbagent/internal/shutdown"
	"github.com/millrace-lb/millrace/lbagent/internal/snapshot"
	"github.com/millrace-lb/millrace/lbagent/internal/source"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
	"github.com/millrace-lb/millrace/lbagent/internal/uplink"
)

// reportTimeout bounds the wait of a failing agent until its boot is reported to the other nodes.
const reportTimeout = 5 * time.Second

// lockTimeout exceeds terminationGracePeriodSeconds of the previous agent (20 s, config/lbagent).
const lockTimeout = 30 * time.Second

// Run runs the agent until ctx is done, and then returns nil. Programs and maps stay: the kernel continues to
// forward, and routers with graceful restart retain the routes until an agent is back.
func Run(ctx context.Context, config Config, logger logr.Logger) error {
	if err := config.validate(); err != nil {
		return err
	}
	clients, err := source.NewClients(config.Kubeconfig, "millrace-lbagent/"+config.Version)
	if err != nil {
		return err
	}
	if config.Relay != "" {
		if err := clients.UseRelay(config.Relay, config.LiveCertificates, config.RelayToken, logger.WithName("relay")); err != nil {
			return err
		}
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
	// Released last, because the next agent may be waiting for it.
	defer lock.Close()
	// Loading the programs and listing many Services take seconds each.
	reading := startSource(ctx, objects)
	defer reading.stop()
	notified := make(chan struct{})
	go func() {
		defer close(notified)
		status.ReportBoot(ctx, clients.Millrace, config.NodeName, bootID, logger.WithName("status"))
	}()
	flowSeed, err := seed.ForNode(ctx, config.PinRoot, clients.TunnelKey, logger.WithName("seed"))
	if err != nil {
		return preflight.ExplainPermission(err)
	}
	withSeed := config.Dataplane()
	withSeed.Seed = flowSeed
	datapath, err := dataplane.Open(withSeed)
	if err != nil {
		// The next process is likely to fail, too, and may be terminated before its boot is reported.
		select {
		case <-notified:
		case <-time.After(reportTimeout):
		}
		return preflight.ExplainPermission(err)
	}
	defer func() {
		if err := datapath.Close(); err != nil {
			logger.Error(err, "Data plane not closed cleanly")
		}
	}()
	return serve(ctx, config, parts{clients, objects, reading, datapath, bootID, flowSeed}, logger)
}

func lockDataplane(ctx context.Context, pinRoot string, logger logr.Logger) (io.Closer, error) {
	limited, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	lock, err := dataplane.Lock(limited, pinRoot, func() {
		logger.Info("Waiting for another agent of this node to release the data plane", "pins", pinRoot, "timeout", lockTimeout)
	})
	switch {
	case errors.Is(err, dataplane.ErrLocked) && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, dataplane.ErrLocked):
		return nil, fmt.Errorf("%w and did not exit within %s; is Millrace installed twice, or does a container of a deleted pod still run?",
			err, lockTimeout)
	default:
		return lock, preflight.ExplainPermission(err)
	}
}

type parts struct {
	clients  *source.Clients
	objects  *source.Source
	source   *runningSource
	datapath *dataplane.Dataplane
	bootID   string
	seed     flowhash.Seed
}

func serve(ctx context.Context, config Config, p parts, logger logr.Logger) error {
	have, err := p.datapath.Dump()
	if err != nil {
		return err
	}
	logAdoption(p.datapath.Adoption(), have, logger)
	monitor := health.New(time.Now)
	links := make(chan struct{}, 1)
	fresh := newCacheSync(p.objects, monitor, links, logger.WithName("freshness"))
	speaker := bgp.New(bgp.Config{Restarting: len(have.Frontends) > 0, Confirm: fresh.Wait})
	writer := newWriter(p, logger.WithName("status"))
	hops := newHops(p.datapath, logger)
	client, process := newBFD(config.BFDSocket)
	exempt := newExemption(p.datapath.NATExempt(), logger, links)
	host := hostcheck.New(p.datapath, exempt.Err, config.VethTransmit, logger)
	checkpointer := checkpoint.NewCheckpointer(p.objects, checkpoint.Config{
		Directory: config.StateDir, BootID: p.bootID, Node: config.NodeName,
		Unforwarded: p.datapath.Adoption().Kind == dataplane.Created, Logger: logger.WithName("checkpoint"),
	})
	watching := newProber(config, checkpointer, logger.WithName("watch"))
	finder, passes := netdev.NewFinder(config.Uplinks), metrics.NewPasses()
	maps := reconcile.New(have, plan.NewPlanner(have).SetHash(p.seed.Constants()), reconcile.Config{
		Plane: p.datapath, Limits: config.limits(), WithdrawDelay: config.WithdrawDelay, MigrateFrontends: serviceProxy{p.datapath}.MigrateFrontends,
		Explain: nameFlag, OnStep: func() { monitor.SetStep("maps") }, Repaired: passes.Repaired, Logger: logger,
	})
	maps.VerifyFrom(time.Now().Add(reconcile.VerifyEvery))
	ends := shutdown.New(p.clients.Installed, p.clients.ShutsDown(config.NodeName), logger)
	var duplicates *dad.Detector
	if config.DuplicateDetection {
		duplicates = dad.NewDetector(func() { notify.Signal(links) }, logger.WithName("duplicates"))
	}
	loop := &loop{
		checkpointer: checkpointer,
		assembler:    newAssembler(config, checkpointer, uplink.NewNetworks(finder.Networks, netdev.Gateways), logger),
		uplinks:      uplink.New(finder.Find, p.datapath, logger),
		maps:         maps,
		hops:         hops,
		discovery:    routerdiscovery.New(func() { notify.Signal(links) }, logger.WithName("routerdiscovery")),
		detector:     detector.New(process, speaker.Down, logger.WithName("bfd")),
		keys:         manager.New(p.datapath, p.seed, p.objects.Report, checkpointer.Generations, logger.WithName("tunnel")),
		status:       writer,
		logger:       logger,
		health:       monitor,
		passes:       passes,
		published:    console.NewPublished(config.NodeName),
		observation:  status.Observation{Version: config.Version},
		host:         host,
		routes: routes.New(have, routes.Config{
			Speaker: speaker, Handover: ends, DrainDelay: config.DrainDelay, UnreadyDelay: config.UnreadyDelay, Duplicates: duplicates,
			Layer2: l2.NewController(l2.NewHeartbeat(p.datapath.Beat, monitor.Alive), fresh.Wait, duplicates.Claimed, logger.WithName("l2")),
			OnStep: monitor.SetStep, Logger: logger,
		}),
	}
	loop.nodeHealth = nodehealth.New(newNodeProber(watching, loop.detector.LastReceived), p.datapath.SetProbeKeys, config.reportAfter, logger.WithName("watch"))
	loop.nodeHealth.Resume(checkpointer.Previous())
	loop.history = recorder.New(config.StateDir, recorder.Source{
		Sessions: speaker.Sessions, Drops: p.datapath.DropCounts, Services: loop.published.Services,
	}, logger.WithName("history"))
	loop.healthPorts = newHealthPorts(config, monitor.Alive, logger.WithName("healthport"))
	loop.canaries = canary.New(logger.WithName("canary"))
	return workers{loop, writer, speaker, fresh, hops, exempt, host, client, watching, loop.canaries, ends, links}.runUntil(ctx, config, p)
}

func logAdoption(adoption dataplane.Adoption, have *forwarding.State, logger logr.Logger) {
	logger.Info("Data plane open", "maps", adoption.Kind, "reason", adoption.Reason, "copied", adoption.Copied, "emptied", adoption.Emptied,
		"frontends", len(have.Frontends), "endpoints", len(have.Endpoints))
}

// newCacheSync returns the gate that delays sessions until a pass has used current objects.
func newCacheSync(objects *source.Source, monitor *health.Monitor, links chan<- struct{}, logger logr.Logger) *cachesync.Gate {
	return cachesync.New(objects.Confirm, func(ctx context.Context) error {
		return monitor.AwaitPass(ctx, func() { notify.Signal(links) })
	}, logger)
}

func newAssembler(config Config, checkpointer *checkpoint.Checkpointer, networks *uplink.Networks, logger logr.Logger) *snapshot.Assembler {
	previous := checkpointer.Previous()
	read := snapshot.New(checkpointer.Objects, previous, config.RemovalGracePeriod, networks, logger)
	if previous == nil {
		previous = &model.Snapshot{}
	}
	read.Retention = retention.New(previous.EndpointSlices, retention.Limits{
		Timeout: config.EndpointRetention, Endpoints: config.MaxRetainedEndpoints,
	})
	read.IsAddressGone = netdev.IsAddressGone
	return read
}

// newProber returns nil if nodes are not probed. It resumes from the checkpoint and adds its nodes to the
// next one.
func newProber(config Config, checkpointer *checkpoint.Checkpointer, logger logr.Logger) *probe.Prober {
	if config.ProbePort == 0 {
		return nil
	}
	prober := probe.New(config.ProbePort, logger)
	prober.Resume(checkpointer.Nodes())
	checkpointer.SetNodes(prober.Known)
	return prober
}

// newNodeProber returns the prober, or nil. Packets from routers prove that the node itself is connected.
func newNodeProber(prober *probe.Prober, heard func(now time.Time) time.Time) nodehealth.Prober {
	if prober == nil {
		return nil
	}
	prober.SetWitness(heard)
	return prober
}

func newHealthPorts(config Config, alive func() error, logger logr.Logger) *healthport.Server {
	if !config.HealthCheckNodePorts {
		return nil
	}
	return healthport.New(healthport.Config{
		ProxyPort: config.ServiceProxyPort, GracePeriod: config.proxyGracePeriod, PollInterval: healthport.ProxyPollInterval, RetryInterval: healthport.RetryInterval,
		Alive: alive, Logger: logger,
	})
}

// newBFD returns a client of lbbfd and the detector's view of it: NoProcess if no socket is configured.
func newBFD(socket string) (*control.Client, detector.Process) {
	client := control.NewClient(socket)
	if socket == "" {
		return client, detector.NoProcess{}
	}
	return client, client
}

func newHops(datapath *dataplane.Dataplane, logger logr.Logger) *netdev.HopWatcher {
	return netdev.NewHopWatcher(netdev.HopConfig{
		Set:        datapath.SetHops,
		SetIngress: datapath.SetIngressInterfaces,
		RenewLease: datapath.RenewLease,
		Report:     func(err error) { reportHops(logger, err) },
	})
}
