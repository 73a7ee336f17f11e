// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"time"

	"github.com/go-logr/logr"
)

const (
	// proxiedEvery is how long a client that uses a port again still comes to the service proxy.
	proxiedEvery = 5 * time.Second
	// proxiedPauses bounds what lists of all the node's connections cost: a sweep takes a fiftieth of
	// the time at most.
	proxiedPauses = 50
)

// ProxiedPlane is a data plane that leaves connections to the node's service proxy.
type ProxiedPlane interface {
	// SweepProxied forgets those that have ended.
	SweepProxied() error
}

// RunProxied sweeps the connections of the service proxy until the context ends. After a sweep that
// fails clients come to the service proxy for longer, and the next one tries again.
func RunProxied(ctx context.Context, plane ProxiedPlane, logger logr.Logger) error {
	pause, failing := proxiedEvery, false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		began := time.Now()
		err := plane.SweepProxied()
		if err != nil && !failing {
			logger.Error(err, "Sweep connections of the service proxy")
		}
		failing = err != nil
		pause = max(proxiedEvery, proxiedPauses*time.Since(began))
	}
}
