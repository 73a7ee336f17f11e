// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
)

// Published holds the names and the decisions of the last pass for readers in other goroutines.
type Published struct {
	node string
	// current computes the names on first use, because few passes are queried.
	current   atomic.Pointer[func() *Directory]
	decisions atomic.Pointer[Decisions]
}

// NewPublished returns the state of a node before its first pass.
func NewPublished(node string) *Published {
	p := &Published{node: node}
	p.SetModel(&model.Model{})
	return p
}

// SetModel publishes the names of a pass.
func (p *Published) SetModel(m *model.Model) {
	read := sync.OnceValue(func() *Directory { return newDirectory(p.node, m) })
	p.current.Store(&read)
}

// Directory returns the names of the last pass.
func (p *Published) Directory() *Directory { return (*p.current.Load())() }

// Services maps frontends to namespace/name.
func (p *Published) Services() map[forwarding.FrontendKey]string { return p.Directory().Services }

func newDirectory(node string, m *model.Model) *Directory {
	names := &Directory{
		Node:     node,
		Services: make(map[forwarding.FrontendKey]string, len(m.Frontends)),
		Local:    make(map[forwarding.FrontendKey]bool, len(m.Frontends)),
		Backends: map[forwarding.FrontendKey][]Backend{},
		Nodes:    make(map[forwarding.NodeID]string, len(m.Nodes)),
	}
	if zone := int(m.Self.Zone); zone < len(m.Zones) {
		names.Zone = m.Zones[zone]
	}
	for _, frontend := range m.Frontends {
		names.Services[frontend.Key] = frontend.Service.String()
		names.Local[frontend.Key] = frontend.Local
		for _, backend := range frontend.Backends {
			names.Backends[frontend.Key] = append(names.Backends[frontend.Key], named(backend))
		}
	}
	for _, node := range m.Nodes {
		names.Nodes[node.ID] = node.Name
	}
	return names
}

func named(backend model.Backend) Backend {
	published := Backend{Weight: backend.Weight, Refused: backend.Refused}
	if backend.Service.Name != "" {
		published.Service = backend.Service.String()
	}
	for _, endpoint := range backend.Own {
		published.Endpoints = append(published.Endpoints, netip.AddrPortFrom(endpoint.Address, endpoint.Port))
	}
	return published
}

// Decisions returns the decisions of the last pass that computed routes, or nil.
func (p *Published) Decisions() *Decisions { return p.decisions.Load() }

// SetDecisions publishes the decisions of a pass. The observation must not be modified afterwards.
func (p *Published) SetDecisions(now time.Time, observation *status.Observation) {
	p.decisions.Store(&Decisions{
		Time: now, VIPs: observation.Decisions, Established: observation.Established(), Sessions: observation.Sessions,
	})
}
