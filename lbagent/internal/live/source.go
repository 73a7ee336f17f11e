// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	liveapi "github.com/millrace-lb/millrace/api/live"
	"github.com/millrace-lb/millrace/lbagent/internal/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// DataPlane provides the flows of the node.
type DataPlane interface {
	Flows(limit int, wanted func(forwarding.FrontendKey, netip.Addr) bool) (flows []dataplane.Flow, more bool, err error)
}

type consoleSource struct {
	console  *console.Server
	datapath DataPlane
}

// NewSource returns a Source for the state of a console and the flows of a data plane.
func NewSource(console *console.Server, datapath DataPlane) Source {
	return &consoleSource{console, datapath}
}

// Node implements Source.
func (s *consoleSource) Node() string { return s.console.Directory().Node }

// Counters implements Source.
func (s *consoleSource) Counters() (*consoleapi.Counters, error) {
	return s.console.Counters(func(forwarding.FrontendKey, string) bool { return true })
}

// VIPs implements Source.
func (s *consoleSource) VIPs(at time.Time) (*consoleapi.VIPs, error) {
	if decisions := s.console.Decisions(); decisions != nil && !decisions.Time.After(at) {
		return nil, nil
	}
	return s.console.VIPs(nil)
}

// Sessions implements Source.
func (s *consoleSource) Sessions() []consoleapi.BGPPeer { return s.console.Peers().Peers }

// Drops implements Source.
func (s *consoleSource) Drops() []consoleapi.Drop { return s.console.RecentDrops() }

// Flows implements Source.
func (s *consoleSource) Flows(service string, clients netip.Prefix, limit int) (flows []liveapi.Flow, more bool, err error) {
	services := s.console.Directory().Services
	found, more, err := s.datapath.Flows(limit, func(key forwarding.FrontendKey, client netip.Addr) bool {
		return services[key] == service && (!clients.IsValid() || clients.Contains(client))
	})
	if err != nil {
		return nil, false, err
	}
	flows = make([]liveapi.Flow, 0, len(found))
	for _, flow := range found {
		item := liveapi.Flow{
			Client: flow.Client, VIP: netip.AddrPortFrom(flow.Frontend.VIP, flow.Frontend.Port),
			Protocol: forwarding.ProtocolName(flow.Frontend.Protocol), Endpoint: flow.Endpoint,
			LastSeen: flow.LastSeen.UTC().Truncate(time.Second), State: liveapi.FlowEstablished,
		}
		if flow.Closing {
			item.State = liveapi.FlowClosing
		}
		flows = append(flows, item)
	}
	return flows, more, nil
}
