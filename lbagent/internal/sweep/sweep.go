// SPDX-License-Identifier: Apache-2.0

// Package sweep has the data plane forget what it has of flows that have ended.
package sweep

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
)

// every is how long a row costs more than one at rest after its last exception has ended, and
// SYNs after the agent's start.
const every = 30 * time.Second

// Plane is a data plane.
type Plane interface {
	SweepExceptions() error
	SweepConnections() error
}

// Run sweeps the exceptions, and the filter of established connections, until the context
// ends. A sweep that fails leaves rows marked or the filter fuller, which costs packets some time
// and nothing else; the next one tries again.
func Run(ctx context.Context, plane Plane, logger logr.Logger) error {
	ticks := time.NewTicker(every)
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
