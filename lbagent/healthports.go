// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/healthport"
)

const (
	// proxyPatience is how long nobody has to be at the port of the service proxy before its work is
	// done: an upgrade of kube-proxy takes a few seconds, and more where its image is not there yet.
	proxyPatience = 30 * time.Second
	// proxyPause is how often that is looked at. A service proxy that comes back listens there
	// before it asks for the ports of Services.
	proxyPause = 500 * time.Millisecond
	// portRetry is how often a port is tried that somebody else has.
	portRetry = 10 * time.Second
)

// newHealthPorts returns what answers at healthCheckNodePorts; nil where nothing is to.
func newHealthPorts(config Config, health *health, logger logr.Logger) *healthport.Server {
	if !config.HealthCheckNodePorts {
		return nil
	}
	return healthport.New(healthport.Config{
		ProxyPort: config.ServiceProxyPort, Patience: config.proxyPatience, Pause: proxyPause, Retry: portRetry,
		Alive: health.alive, Logger: logger,
	})
}
