// SPDX-License-Identifier: Apache-2.0

package canary

import (
	"net/netip"
	"slices"

	canaryapi "github.com/millrace-lb/millrace/api/canary"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
)

// probedSessions is the maximum number of probed pairs of a session and a canary in a report.
const probedSessions = 16

// Observe sets the targets of p to canaries through the routers of established sessions, and adds the
// results to the sessions. A nil Prober probes nothing.
func (p *Prober) Observe(
	m *model.Model, tunnel forwarding.TunnelKeys, decisions []announce.Decision, sessions []millracev1beta1.SessionStatus,
) {
	if p == nil {
		return
	}
	want := Want{Self: m.Self.ID, Keys: probe.Keys(tunnel), Targets: map[Target]bool{}}
	targets := map[string][]Target{}
	for i := range m.VIPs {
		vip := &m.VIPs[i]
		if vip.Canary == "" {
			continue
		}
		at, decided := slices.BinarySearchFunc(decisions, vip.Address, func(d announce.Decision, a netip.Addr) int { return d.VIP.Compare(a) })
		for j := range m.Peers {
			peer := &m.Peers[j]
			target := Target{Peer: peer.Name, Router: peer.Address, Canary: vip.Address, Source: m.Self.IPv6}
			if vip.Address.Is4() {
				target.Source = m.Self.IPv4
			}
			if peer.Object() != vip.Canary || !target.Source.IsValid() || !isUp(sessions, peer.Name) || len(want.Targets) >= probedSessions {
				continue
			}
			want.Targets[target] = decided && slices.Contains(decisions[at].Peers, peer.Name)
			targets[peer.Name] = append(targets[peer.Name], target)
		}
	}
	p.SetTargets(want)
	for i := range sessions {
		for _, target := range targets[sessions[i].Peer] {
			sessions[i].Canaries = append(sessions[i].Canaries, canaryStatus(target, p.Result(target)))
		}
	}
}

func isUp(sessions []millracev1beta1.SessionStatus, peer string) bool {
	return slices.ContainsFunc(sessions, func(s millracev1beta1.SessionStatus) bool {
		return s.Peer == peer && s.State == millracev1beta1.SessionEstablished
	})
}

func canaryStatus(target Target, result Result) millracev1beta1.CanaryStatus {
	status := millracev1beta1.CanaryStatus{Address: target.Canary.String(), Announced: result.Announced}
	if result.Known {
		status.Reached, status.ReachedBySmallProbes = canaryapi.FormatIDs(result.Reached), canaryapi.FormatIDs(result.Short)
		status.Unanswered = &result.Unanswered
	}
	return status
}
