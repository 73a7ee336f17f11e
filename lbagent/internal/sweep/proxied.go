// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"time"

	"github.com/go-logr/logr"
)

const (
	// proxiedInterval bounds how long a client that reuses a port still reaches the service proxy.
	proxiedInterval = 5 * time.Second
	// proxiedPauses limits sweeps to 2 % of the time, because they list all connections of the node.
	proxiedPauses = 50
)

// ProxiedPlane is a data plane that leaves connections to the node's service proxy.
type ProxiedPlane interface {
	SweepProxied() error
}

// RunProxied sweeps the service proxy's connections until ctx is done. After an error clients reach the
// service proxy longer, until the next sweep.
func RunProxied(ctx context.Context, plane ProxiedPlane, logger logr.Logger) error {
	pause, failing := proxiedInterval, false
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
		pause = max(proxiedInterval, proxiedPauses*time.Since(began))
	}
}
