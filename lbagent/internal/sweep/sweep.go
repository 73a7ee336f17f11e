// SPDX-License-Identifier: Apache-2.0

// Package sweep periodically removes ended flows from the data plane.
package sweep

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
)

// interval is the interval of sweeps, the time for which a row remains slower after its last override has
// ended.
const interval = 30 * time.Second

// Plane is a data plane.
type Plane interface {
	SweepOverrides() error
	SweepConnections() error
}

// Run sweeps overrides and the filter of established connections until ctx is done. After an error rows
// stay marked and the filter fuller, which only costs performance until the next sweep.
func Run(ctx context.Context, plane Plane, logger logr.Logger) error {
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks.C:
		}
		err := errors.Join(plane.SweepOverrides(), plane.SweepConnections())
		if err != nil && !failing {
			logger.Error(err, "Sweep flows")
		}
		failing = err != nil
	}
}
