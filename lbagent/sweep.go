// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
)

// sweepEvery is how long a row costs more than one at rest after its last exception has ended, and
// SYNs after the agent's start.
const sweepEvery = 30 * time.Second

// sweeper is a data plane.
type sweeper interface {
	SweepExceptions() error
	SweepConnections() error
}

// sweepFlows sweeps the exceptions, and the filter of established connections, until the context
// ends. A sweep that fails leaves rows marked or the filter fuller, which costs packets some time
// and nothing else; the next one tries again.
func sweepFlows(ctx context.Context, plane sweeper, logger logr.Logger) error {
	ticks := time.NewTicker(sweepEvery)
	defer ticks.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks.C:
		}
		err := errors.Join(plane.SweepExceptions(), plane.SweepConnections())
		if err != nil && !failing {
			logger.Error(err, "Sweep flows")
		}
		failing = err != nil
	}
}
