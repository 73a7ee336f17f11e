// SPDX-License-Identifier: Apache-2.0

package healthport

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

func frontend(vip string, port uint16, healthPort uint16, endpoints ...string) *model.Frontend {
	f := &model.Frontend{
		Key:     forwarding.FrontendKey{VIP: netip.MustParseAddr(vip), Port: port, Protocol: forwarding.ProtocolTCP},
		Service: model.ServiceName{Namespace: "shop", Name: "web"}, HealthPort: healthPort,
	}
	for _, text := range endpoints {
		f.Endpoints = append(f.Endpoints, forwarding.Endpoint{Address: netip.MustParseAddr(text), Port: 8080})
	}
	return f
}

func TestChecks(t *testing.T) {
	leaving := frontend("203.0.113.2", 80, 30002, "198.18.1.3")
	leaving.Terminating = true
	got := Checks(&model.Model{Frontends: []*model.Frontend{
		// Pods are counted, not ports.
		frontend("203.0.113.1", 80, 30001, "198.18.1.1", "198.18.1.2"),
		frontend("203.0.113.1", 443, 30001, "198.18.1.2"),
		frontend("2001:db8::1", 80, 30001, "2001:db8:1::1"),
		// Terminating pods are not ready.
		leaving,
		frontend("203.0.113.3", 80, 30003),
		// The other policy has no health port.
		frontend("203.0.113.4", 80, 0, "198.18.1.4"),
	}})
	web := model.ServiceName{Namespace: "shop", Name: "web"}
	want := map[Key]Check{
		{30001, false}: {web, 2}, {30001, true}: {web, 1}, {30002, false}: {web, 0}, {30003, false}: {web, 0},
	}
	if !maps.Equal(got, want) {
		t.Errorf("Want = %v, want %v", got, want)
	}
}
