// SPDX-License-Identifier: Apache-2.0

// Package healthport serves the healthCheckNodePort of Services, which reports whether the node has
// endpoints, on nodes without a service proxy such as kube-proxy.
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

// Check is the response of a port.
type Check struct {
	Service   model.ServiceName
	Endpoints int
}

// Checks returns the checks of the Services with a VIP, each for the families of its VIPs. It does no I/O.
func Checks(m *model.Model) map[Key]Check {
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
