// SPDX-License-Identifier: Apache-2.0

// Package healthport answers at the healthCheckNodePort of Services whether the node has endpoints
// for them, where no service proxy such as kube-proxy does it.
package healthport

import (
	"net/netip"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Key is a TCP port of the node, for one address family.
type Key struct {
	Port uint16
	IPv6 bool
}

// Check is what is answered at a port.
type Check struct {
	Service model.ServiceName
	// Endpoints is how many pods on this node are ready.
	Endpoints int
}

// Want returns the checks of the Services that have a VIP, each for the families of its VIPs. It
// does no I/O.
func Want(m *model.Model) map[Key]Check {
	want := map[Key]Check{}
	counted := map[Key]map[netip.Addr]bool{}
	for _, frontend := range m.Frontends {
		if frontend.HealthPort == 0 {
			continue
		}
		key := Key{Port: frontend.HealthPort, IPv6: frontend.Key.VIP.Is6()}
		if counted[key] == nil {
			counted[key] = map[netip.Addr]bool{}
		}
		if !frontend.Terminating {
			for _, endpoint := range frontend.Endpoints {
				counted[key][endpoint.Address] = true
			}
		}
		want[key] = Check{Service: frontend.Service, Endpoints: len(counted[key])}
	}
	return want
}
