// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
	"github.com/millrace-lb/millrace/lbagent/internal/socketfilter"
)

// countDrops adds the socket's drops since the last call.
func (e *Engine) countDrops(l *listener) {
	if l.fd < 0 {
		return
	}
	if now := socketfilter.Drops(l.fd); now != l.dropped {
		e.discarded["socket"] += uint64(now - l.dropped)
		l.dropped = now
	}
}

func (e *Engine) makeReport() *control.Report {
	for _, l := range e.listeners {
		e.countDrops(l)
	}
	report := &control.Report{
		LongestDelay: e.longestDelay,
		Discarded:    maps.Clone(e.discarded), Sessions: slices.Clone(e.refused),
	}
	if e.priority != nil {
		report.Problem = e.priority.Error()
	}
	for _, s := range e.sessions {
		report.Sessions = append(report.Sessions, control.Session{
			Peer: s.peer.Name, Address: s.peer.Address, State: s.State(), PeerState: s.PeerState(),
			Since: s.Since(), Losses: s.Losses(), Message: e.message(s),
			TransmitInterval: s.TransmitInterval(), DetectionTime: s.DetectionTime(),
		})
	}
	slices.SortFunc(report.Sessions, func(a, b control.Session) int { return strings.Compare(a.Peer, b.Peer) })
	return report
}

func (e *Engine) message(s *session) string {
	if s.State() == bfd.Up {
		return ""
	}
	if l := e.listeners[s.kind()]; l != nil && l.err != nil {
		return l.err.Error()
	}
	switch {
	case s.problem != "":
		return s.problem
	case s.PeerState() == bfd.AdminDown:
		return "the peer reports AdminDown"
	case s.Diagnostic() == bfd.DiagnosticNone && s.DetectionTime() == 0:
		return "no packet received from the peer yet"
	case s.Diagnostic() == bfd.DiagnosticNeighborDown && s.PeerDiagnostic() != bfd.DiagnosticNone:
		return fmt.Sprintf("%s: %s", s.Diagnostic(), s.PeerDiagnostic())
	case s.Diagnostic() != bfd.DiagnosticNone:
		return s.Diagnostic().String()
	}
	return ""
}
