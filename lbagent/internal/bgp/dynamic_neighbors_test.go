// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Only so many routers of a range have a place, and those of no range none.
func TestDynamicNeighbors(t *testing.T) {
	at := netip.MustParseAddr
	c := dynamicNeighbors{routers: map[netip.Addr]*dynamicNeighbor{}}
	ranges := []model.Range{
		{Name: "open", Prefix: netip.MustParsePrefix("198.51.100.0/24"), Most: 2},
		{Name: "shut", Prefix: netip.MustParsePrefix("203.0.113.0/24"), Most: 2, PasswordSecret: secret},
	}
	c.want(ranges, nil)
	if waits := c.awaited(); len(waits) != 1 || waits[0].Peer != "open" || !strings.Contains(waits[0].Message, "198.51.100.0/24") {
		t.Errorf("awaited: %+v", waits)
	}
	for _, step := range []struct {
		router string
		taken  bool
	}{
		{"198.51.100.1", true}, {"198.51.100.2", true}, {"198.51.100.1", true}, {"198.51.100.3", false},
		{"203.0.113.1", false}, {"2001:db8::1", false},
	} {
		if got := c.call(at(step.router), nil); got != step.taken {
			t.Errorf("%s is taken: %t", step.router, got)
		}
	}
	if waits := c.awaited(); len(waits) != 0 {
		t.Errorf("awaited though routers have connected: %+v", waits)
	}
	if away := c.turnedAway(); len(away) != 1 || away[0].Peer != "open/198.51.100.3" || !strings.Contains(away[0].Message, "2 routers") {
		t.Errorf("turned away: %+v", away)
	}
	c.want(ranges, map[string]string{secret: password})
	if !c.call(at("203.0.113.1"), nil) {
		t.Error("with the password of the range its router is not taken")
	}
}

// Routers of a network connect, with its password alone. Each gets routes and has a state; one
// that has an LBPeer of its own is none of the range.
func TestRange(t *testing.T) {
	for name, start := range connecting(" neighbor 198.51.100.2 password right\n", `password "right";`) {
		t.Run(name, func(t *testing.T) {
			l := start(t)
			p := l.speaker("fresh")
			want := Want{
				RouterID:  nodeIPv4,
				Ranges:    []model.Range{{Name: peerName, Prefix: netip.MustParsePrefix("198.51.100.0/28"), Most: 1, PasswordSecret: secret}},
				Passwords: map[string]string{secret: "wrong"},
			}
			p.set(want)
			l.awaitWithout(40*time.Second, "the kernel drops what has another password", func() bool {
				out, err := exec.Command("ip", "netns", "exec", l.NodeSpace, "nstat", "-asz", "TcpExtTCPMD5Failure").Output()
				fields := strings.Fields(string(out))
				return err == nil && len(fields) > 1 && fields[len(fields)-2] != "0"
			})
			if found := p.call(nil).DynamicNeighbors; len(found) > 0 {
				t.Errorf("with a wrong password %v connected", found)
			}
			want.Passwords[secret] = password
			p.set(want)
			l.awaitWithout(40*time.Second, "the router has connected", func() bool {
				return slices.Equal(p.call(nil).DynamicNeighbors, []netip.Addr{routerIPv4})
			})
			peer := passivePeer()
			peer.Name, peer.OfRange, peer.PasswordSecret = peerName+"/"+routerIPv4.String(), peerName, secret
			want.Peers, want.Routes = []model.Peer{peer}, announce.Routes{peer.Name: {testRoute(vip4)}}
			p.set(want)
			l.awaitWithout(40*time.Second, "up", func() bool { return isUp(p.session(peer.Name)) })
			if l.Router != nil {
				l.awaitRoutes(20*time.Second, map[string]string{vip4: nodeIPv4.String()})
			}
			if found := p.call(nil).DynamicNeighbors; !slices.Equal(found, []netip.Addr{routerIPv4}) {
				t.Errorf("routers of the range are %v", found)
			}

			// An LBPeer of its own, which the node connects.
			want.Peers, want.Ranges = []model.Peer{testPeer()}, nil
			want.Peers[0].PasswordSecret = secret
			p.set(want)
			l.await(p, 40*time.Second, "up as a peer of its own", isUp)
			if found := p.call(nil).DynamicNeighbors; len(found) > 0 {
				t.Errorf("without a range it has the routers %v", found)
			}
		})
	}
}

// awaitWithout is Await where the router may be another than FRR.
func (l *lab) awaitWithout(limit time.Duration, what string, condition func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(limit); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("not within %s: %s", limit, what)
		}
	}
}
