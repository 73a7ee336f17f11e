// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"time"

	"github.com/go-logr/logr"
)

// sweepEvery is how long a row costs more than one at rest after its last exception has ended.
const sweepEvery = 30 * time.Second

// sweeper is a data plane.
type sweeper interface {
	SweepExceptions() error
}

// sweepExceptions sweeps the exceptions until the context ends. A sweep that fails leaves rows
// marked, which costs packets some time and nothing else; the next one tries again.
func sweepExceptions(ctx context.Context, plane sweeper, logger logr.Logger) error {
	ticks := time.NewTicker(sweepEvery)
	defer ticks.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks.C:
		}
		err := plane.SweepExceptions()
		if err != nil && !failing {
			logger.Error(err, "Sweep the exceptions")
		}
		failing = err != nil
	}
}
