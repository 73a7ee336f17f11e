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
	"github.com/millrace-lb/millrace/lbagent/internal/inputs"
	"github.com/millrace-lb/millrace/lbagent/internal/keyring/keeper"
	"github.com/millrace-lb/millrace/lbagent/internal/metrics"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/reconcile"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
	"github.com/millrace-lb/millrace/lbagent/internal/routes"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
	"github.com/millrace-lb/millrace/lbagent/internal/uplink"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
	"github.com/millrace-lb/millrace/lbagent/internal/watch"
)

// What a pass reads and writes.
type (
	reporter interface {
		Set(observation status.Observation)
	}
	hostChecks interface {
		Problems(m *model.Model, uplinks []string) []string
		OtherUplink() bool
	}
	hopWatcher interface {
		Want(targets map[forwarding.NodeID]fib.Target, devices map[int][]int)
	}
)

const (
	firstRetry   = time.Second
	longestRetry = 30 * time.Second
)

// loop brings the node to what the objects say, pass by pass. All retries are
// here: what fails in a pass is tried again by the next one, and holds up only what depends
// on it.
type loop struct {
	// inputs are what passes work by.
	inputs *inputs.Inputs
	// checkpointer keeps the objects for the next agent; nil where nothing does.
	checkpointer *checkpoint.Checkpointer
	uplinks      *uplink.Uplinks
	hops         hopWatcher
	detector     *detector.Detector
	// keys are those for packets between nodes; nil where nothing sets them.
	keys   *keeper.Keeper
	status reporter
	logger logr.Logger
	health *health.Monitor
	passes *metrics.Passes
	// published is what those who ask hear of passes.
	published *console.Published
	// host says what on the host breaks traffic of the uplinks; nil finds nothing.
	host hostChecks

	models model.Builder
	// maps are those of the data plane.
	maps *reconcile.Maps
	// targets are where packets to the other nodes go.
	targets fib.UpTargets
	// routes are announced to routers and on links.
	routes *routes.Announcer
	// watch says which nodes are down.
	watch *watch.Watch
	// canaries probes through routers; nil where nothing does.
	canaries *canary.Prober
	// healthPorts answers at healthCheckNodePorts; nil where nobody is to.
	healthPorts *healthport.Server
	// history records what passes saw; nil where nothing does.
	history *recorder.Recorder
	// observation is what the last pass saw.
	observation status.Observation
}

// run makes a pass at once, whenever one of the channels has a value, and
// when a pass asked for another.
func (l *loop) run(ctx context.Context, objects, links, sessions <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	retry := firstRetry
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
			l.logger.Error(err, "Pass failed in part; will try again", "after", retry)
			again = wake.Soonest(again, retry)
			retry = min(2*retry, longestRetry)
		} else {
			retry = firstRetry
		}
		ended := time.Now()
		l.passes.Observe(now, ended, err, metrics.Pass{
			Fill: l.maps.Fill(), Limits: l.maps.Limits, Uplinks: l.observation.Interfaces, Held: removalguard.Count(l.observation.Held),
			Unready: l.observation.Unready.Endpoints, Retained: l.inputs.Retained(),
		})
		l.routes.LogSessions()
		// Last: until here, whatever hangs is a pass that does.
		l.health.End(ended, err, l.routes.Speaker.Sessions())
		timer.Stop()
		if again > 0 {
			timer.Reset(again)
		}
	}
}
