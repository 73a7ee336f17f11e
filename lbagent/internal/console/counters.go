// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/api/inspect"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// counters are those of now, sorted by frontend.
func (s *Server) counters() (*inspect.Counters, error) {
	now := time.Now().UTC()
	counters, err := s.DataPlane.Counters()
	if err != nil {
		return nil, err
	}
	directory := s.Directory()
	line := &inspect.Counters{Time: now, Node: directory.Node, Frontends: []inspect.Frontend{}, Drops: counters.Drops}
	for key, counter := range counters.Frontends {
		line.Frontends = append(line.Frontends, inspect.Frontend{
			VIP: key.VIP, Port: key.Port, Protocol: program.ProtocolName(key.Protocol), Service: directory.Services[key],
			Packets: counter.Packets, Bytes: counter.Bytes, Connections: counter.Connections, Drops: counter.Drops,
		})
	}
	slices.SortFunc(line.Frontends, func(a, b inspect.Frontend) int {
		return cmp.Or(a.VIP.Compare(b.VIP), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	return line, nil
}
