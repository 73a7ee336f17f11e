// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
)

// The session of a renamed LBPeer stays up. A changed address closes it.
func TestSet(t *testing.T) {
	peer := func(name, address string) control.Peer {
		p := control.Peer{Name: name, Address: peerAddress, Parameters: bfd.Parameters{TransmitInterval: 100 * ms, DetectMultiplier: 3}}
		if address != "" {
			p.Address = elsewhere
		}
		return p
	}
	for name, test := range map[string]struct {
		want []control.Peer
		// continues is the name of the peer with the session, or "".
		continues string
	}{
		"unchanged":                           {[]control.Peer{peer("router", "")}, "router"},
		"renamed":                             {[]control.Peer{peer("new", "")}, "new"},
		"changed address":                     {[]control.Peer{peer("router", "elsewhere")}, ""},
		"name reused for another address":     {[]control.Peer{peer("router", "elsewhere"), peer("new", "")}, "new"},
		"second LBPeer with the same address": {[]control.Peer{peer("new", ""), peer("router", "")}, "router"},
		"removed":                             {nil, ""},
		"removed, another LBPeer added":       {[]control.Peer{peer("new", "elsewhere")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, s := engineWith(t, false, true)
			e.set(&control.Want{Peers: test.want}, time.Now())
			for peer, other := range e.sessions {
				if (other == s) != (peer == test.continues) || other.peer.Name != peer {
					t.Errorf("LBPeer %s uses the session of %s", peer, other.peer.Name)
				}
			}
			if isUp := s.State() == bfd.Up; isUp != (test.continues != "") || isUp != (e.sessions[test.continues] == s) {
				t.Errorf("session state %s", s.State())
			}
		})
	}
}
