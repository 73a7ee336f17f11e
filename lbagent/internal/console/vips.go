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

// Decisions are those of the last pass that came as far as its routes.
type Decisions struct {
	// Time is when that pass began.
	Time time.Time
	// VIPs are sorted by address.
	VIPs []announce.Decision
	// Established has what established sessions carry.
	Established announce.Sessions
	// Sessions are the statuses of the sessions, for those of BFD.
	Sessions []millracev1beta1.SessionStatus
}

// VIPs are the decisions about some VIPs, or all of them where no address is given. Before the
// agent's first pass they are an error.
func (s *Server) VIPs(addresses []netip.Addr) (*consoleapi.VIPs, error) {
	decisions := s.Decisions()
	if decisions == nil {
		return nil, errors.New("the agent has not decided yet: its first pass is not done")
	}
	line := decisions.line(addresses)
	line.Node = s.Directory().Node
	return line, nil
}

// line groups the VIPs that have the same peers, or the same reason.
func (d *Decisions) line(addresses []netip.Addr) *consoleapi.VIPs {
	line := &consoleapi.VIPs{Time: d.Time.UTC(), Groups: []consoleapi.VIPGroup{}}
	groups := map[string]int{}
	asked := make(map[netip.Addr]bool, len(addresses))
	for _, address := range addresses {
		asked[address] = true
	}
	for _, decision := range d.VIPs {
		if len(asked) > 0 && !asked[decision.VIP] {
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
