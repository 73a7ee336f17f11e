// SPDX-License-Identifier: Apache-2.0

package console

import (
	"slices"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Counters returns the current counters, sorted by frontend. wants selects frontends by key and Service
// (namespace/name).
func (s *Server) Counters(wants func(key forwarding.FrontendKey, service string) bool) (*consoleapi.Counters, error) {
	now := time.Now().UTC()
	directory := s.Directory()
	counters, err := s.DataPlane.CountersOf(func(key forwarding.FrontendKey) bool {
		return wants(key, directory.Services[key])
	})
	if err != nil {
		return nil, err
	}
	line := &consoleapi.Counters{Time: now, Node: directory.Node, Frontends: []consoleapi.Frontend{}, Drops: counters.Drops}
	for _, drops := range counters.TransmitDrops {
		if drops.Transmit+drops.Redirect > 0 {
			line.Uplinks = append(line.Uplinks, consoleapi.Uplink(drops))
		}
	}
	for key, counter := range counters.Frontends {
		line.Frontends = append(line.Frontends, consoleapi.Frontend{
			FrontendName: consoleapi.FrontendName{
				VIP: key.VIP, Port: key.Port, Protocol: forwarding.ProtocolName(key.Protocol), Service: directory.Services[key],
			},
			Packets: counter.Packets, Bytes: counter.Bytes, Connections: counter.Connections, Drops: counter.Drops,
		})
	}
	slices.SortFunc(line.Frontends, func(a, b consoleapi.Frontend) int {
		return a.Compare(b.FrontendName)
	})
	return line, nil
}
