// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd/detector"
	"github.com/millrace-lb/millrace/lbagent/internal/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/checkpoint"
	"github.com/millrace-lb/millrace/lbagent/internal/console"
	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/health"
	"github.com/millrace-lb/millrace/lbagent/internal/healthport"
	"github.com/millrace-lb/millrace/lbagent/internal/history/recorder"
	"github.com/millrace-lb/millrace/lbagent/internal/keyring/manager"
	"github.com/millrace-lb/millrace/lbagent/internal/metrics"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/nodehealth"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
	"github.com/millrace-lb/millrace/lbagent/internal/reconcile"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
	"github.com/millrace-lb/millrace/lbagent/internal/routerdiscovery"
	"github.com/millrace-lb/millrace/lbagent/internal/routes"
	"github.com/millrace-lb/millrace/lbagent/internal/snapshot"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
	"github.com/millrace-lb/millrace/lbagent/internal/uplink"
)

type (
	reporter interface {
		Set(observation status.Observation)
	}
	hostChecks interface {
		Problems(m *model.Model, uplinks []string) []string
		UnexpectedUplink() bool
	}
	hopWatcher interface {
		SetTargets(targets map[forwarding.NodeID]fib.Target, devices map[int][]int)
	}
)

const (
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// loop reconciles the node with the objects in passes. It alone retries: the next pass repeats a failed step,
// and a failure affects only the steps that depend on it.
type loop struct {
	assembler    *snapshot.Assembler
	checkpointer *checkpoint.Checkpointer
	uplinks      *uplink.Uplinks
	hops         hopWatcher
	detector     *detector.Detector
	// keys, healthPorts, canaries, history, host, discovery and checkpointer are nil if disabled.
	keys      *manager.Manager
	status    reporter
	logger    logr.Logger
	health    *health.Monitor
	passes    *metrics.Passes
	published *console.Published
	host      hostChecks

	models      model.Builder
	maps        *reconcile.Maps
	targets     fib.UpTargets
	routes      *routes.Announcer
	nodeHealth  *nodehealth.Tracker
	discovery   *routerdiscovery.Discovery
	canaries    *canary.Prober
	healthPorts *healthport.Server
	history     *recorder.Recorder
	observation status.Observation
}

// run runs a pass at start, for each value of a channel, and when the previous pass requested one.
func (l *loop) run(ctx context.Context, objects, links, sessions <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer l.discovery.Close()
	retry := minRetry
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-objects:
		case <-links:
		case <-sessions:
		case <-timer.C:
		}
		now := time.Now()
		l.health.Begin(now)
		again, err := l.pass(now)
		if err != nil {
			l.logger.Error(err, "Pass failed in part; will retry", "after", retry)
			again = notify.Soonest(again, retry)
			retry = min(2*retry, maxRetry)
		} else {
			retry = minRetry
		}
		ended := time.Now()
		l.passes.Observe(now, ended, err, metrics.Pass{
			Usage: l.maps.Usage(), Limits: l.maps.Limits, Uplinks: l.observation.Interfaces, Held: removalguard.Count(l.observation.Held),
			Unready: l.observation.Unready.Endpoints, Retained: l.assembler.Retained(),
		})
		l.routes.LogSessions()
		// Last, so that a hang in any step above counts as a hanging pass.
		l.health.End(ended, err, l.routes.Speaker.Sessions())
		timer.Stop()
		if again > 0 {
			timer.Reset(again)
		}
	}
}
