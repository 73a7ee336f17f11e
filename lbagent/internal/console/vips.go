// SPDX-License-Identifier: Apache-2.0

package console

import (
	"errors"
	"net/netip"
	"strings"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
)

// Decisions are the decisions of the last pass that computed routes.
type Decisions struct {
	Time        time.Time
	VIPs        []announce.Decision
	Established announce.Sessions
	Sessions    []millracev1beta1.SessionStatus
}

// VIPs returns the decisions about some VIPs, or about all without addresses. It returns an error before
// the agent's first pass.
func (s *Server) VIPs(addresses []netip.Addr) (*consoleapi.VIPs, error) {
	decisions := s.Decisions()
	if decisions == nil {
		return nil, errors.New("the agent has no decisions yet: its first pass has not finished")
	}
	line := decisions.line(addresses)
	line.Node = s.Directory().Node
	return line, nil
}

// line groups the VIPs with equal peers or an equal reason.
func (d *Decisions) line(addresses []netip.Addr) *consoleapi.VIPs {
	line := &consoleapi.VIPs{Time: d.Time.UTC(), Groups: []consoleapi.VIPGroup{}}
	groups := map[string]int{}
	selected := make(map[netip.Addr]bool, len(addresses))
	for _, address := range addresses {
		selected[address] = true
	}
	for _, decision := range d.VIPs {
		if len(selected) > 0 && !selected[decision.VIP] {
			continue
		}
		decision = decision.Observed(d.Established)
		key := strings.Join(append([]string{decision.Reason, decision.Message}, decision.Peers...), "\x00")
		at, known := groups[key]
		if !known {
			at = len(line.Groups)
			groups[key] = at
			line.Groups = append(line.Groups, consoleapi.VIPGroup{
				Peers: decision.Peers, Reason: decision.Reason, Message: decision.Message,
			})
		}
		line.Groups[at].Addresses = append(line.Groups[at].Addresses, decision.VIP)
	}
	return line
}
