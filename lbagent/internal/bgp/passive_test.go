// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/test/bird"
)

// connecting returns routers that initiate the connection, each with an option.
func connecting(frrOption, birdOption string) map[string]func(t *testing.T) *lab {
	return map[string]func(t *testing.T) *lab{
		"FRR": func(t *testing.T) *lab {
			neighbor := strings.Replace(staticNeighbor, " neighbor 198.51.100.2 passive\n", "", 1)
			at := strings.Index(neighbor, " address-family")
			return newLab(t, neighbor[:at]+frrOption+neighbor[at:])
		},
		"BIRD": func(t *testing.T) *lab {
			l := newLink(t)
			bird.Start(t, l.RouterSpace, strings.Replace(birdNeighbor(birdOption), "passive; ", "connect delay time 1; ", 1))
			return l
		},
	}
}

func passivePeer() model.Peer {
	peer := testPeer()
	peer.Passive = true
	return peer
}

// Passive peers need the password and TTL security, and the session is re-established after a reset. Only
// one process can listen.
func TestPassive(t *testing.T) {
	for name, start := range connecting(" neighbor 198.51.100.2 password right\n neighbor 198.51.100.2 ttl-security hops 1\n",
		`password "right"; ttl security on;`) {
		t.Run(name, func(t *testing.T) {
			l := start(t)
			p := l.speaker("fresh")
			peer := passivePeer()
			peer.PasswordSecret, peer.SecurityHops = secret, 1
			want := Want{
				RouterID: nodeIPv4, Peers: []model.Peer{peer}, Routes: announce.Routes{peerName: {testRoute(vip4)}},
				Passwords: map[string]string{secret: "wrong"},
			}
			p.set(want)
			l.await(p, 20*time.Second, "down with a wrong password", tells("passive"))
			want.Passwords = map[string]string{secret: password}
			p.set(want)
			l.await(p, 40*time.Second, "up with the right one", isUp)
			if l.Router != nil {
				l.awaitRoutes(20*time.Second, map[string]string{vip4: nodeIPv4.String()})
			}

			// The router does not connect to this source.
			up := p.session(peerName).Since
			want.Peers[0].Source = nodeIPv4
			p.set(want)
			l.await(p, 40*time.Second, "up again at its source address", func(s Session) bool { return isUp(s) && s.Since.After(up) })

			second := l.speaker("fresh")
			if r := second.call(&want); !strings.Contains(r.Error, "TCP port 179 is in use") {
				t.Errorf("second listening process: error %q, want port in use", r.Error)
			}
			want.Peers[0].Passive = false
			p.set(want)
			l.await(p, 40*time.Second, "up when the node connects", isUp)
			if r := second.call(&Want{RouterID: nodeIPv4, Peers: []model.Peer{passivePeer()}}); r.Error != "" {
				t.Errorf("the port was not released: %s", r.Error)
			}
		})
	}
}
