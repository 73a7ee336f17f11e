// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/test/bird"
)

const (
	secret   = "tor"
	password = "right"
)

// birdNeighbor returns the node's protocol in BIRD's configuration.
func birdNeighbor(options string) string {
	return fmt.Sprintf(`protocol bgp node {
	local 198.51.100.1 as 64500;
	neighbor 198.51.100.2 as 64512;
	passive; graceful restart aware; connect retry time 1; error wait time 1, 1;
	%s
	ipv4 { import all; export none; };
	ipv6 { import all; export none; };
}
`, options)
}

// routers returns FRR and BIRD with equivalent options.
func routers(frrOption, birdOption string) map[string]func(t *testing.T) *lab {
	return map[string]func(t *testing.T) *lab{
		"FRR": func(t *testing.T) *lab {
			neighbor := staticNeighbor
			if frrOption != "" {
				at := strings.Index(neighbor, " address-family")
				neighbor = neighbor[:at] + " neighbor 198.51.100.2 " + frrOption + "\n" + neighbor[at:]
			}
			return newLab(t, neighbor)
		},
		"BIRD": func(t *testing.T) *lab {
			l := newLink(t)
			bird.Start(t, l.RouterSpace, birdNeighbor(birdOption))
			return l
		},
	}
}

func (l *lab) await(p *process, limit time.Duration, what string, holds func(Session) bool) {
	l.t.Helper()
	var session Session
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		if session = p.session(peerName); holds(session) {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("timeout after %s: %s; session %+v", limit, what, session)
		}
	}
}

func isUp(session Session) bool { return session.State == millracev1beta1.SessionEstablished }

// The predicate is true if the session is down with these words in its message.
func tells(words string) func(Session) bool {
	return func(session Session) bool { return !isUp(session) && strings.Contains(session.Message, words) }
}

// Only the right password establishes a session, and a wrong new one does not close it.
func TestPassword(t *testing.T) {
	for name, start := range routers("password "+password, `password "`+password+`";`) {
		t.Run(name, func(t *testing.T) {
			l := start(t)
			p := l.speaker("fresh")
			peer := testPeer()
			peer.PasswordSecret = secret
			want := Want{RouterID: nodeIPv4, Peers: []model.Peer{peer}, Routes: announce.Routes{peerName: {testRoute(vip4)}}}
			set := func(passwords map[string]string) {
				t.Helper()
				want.Passwords = passwords
				p.set(want)
			}
			set(map[string]string{secret: "wrong"})
			l.await(p, 15*time.Second, "wrong password reported", tells("password"))
			set(map[string]string{secret: password})
			l.await(p, 20*time.Second, "up with the right password", isUp)
			up := p.session(peerName)
			set(map[string]string{"other": "x", secret: password})
			if again := p.session(peerName); !again.Since.Equal(up.Since) {
				t.Errorf("another Secret affected the session: %+v, then %+v", up, again)
			}
			// A password that the router lacks is reported without a reset.
			stays := func(what string, words ...string) {
				t.Helper()
				l.await(p, 15*time.Second, what, func(s Session) bool {
					if !s.Since.Equal(up.Since) || !isUp(s) {
						t.Fatalf("%s affected the session: %+v, then %+v", what, up, s)
					}
					return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(s.Message, word) })
				})
			}
			set(nil)
			stays("removed Secret", "Secret tor does not exist")
			peer.PasswordSecret = "missing"
			want.Peers = []model.Peer{peer}
			set(map[string]string{secret: password})
			stays("another Secret that does not exist", "Secret missing does not exist")
			peer.PasswordSecret = secret
			want.Peers = []model.Peer{peer}
			set(map[string]string{secret: "wrong"})
			stays("a wrong password", "continues with the previous password", "no answer")
			peer.PasswordSecret = ""
			want.Peers = []model.Peer{peer}
			set(nil)
			stays("no password", "continues with the previous password", "no answer")
			peer.PasswordSecret = secret
			want.Peers = []model.Peer{peer}
			set(map[string]string{secret: password})
			stays("the password back")
			if s := p.session(peerName); s.Message != "" {
				t.Errorf("after the password was restored: session %+v", s)
			}
			// The old password also survives a lost connection. ss may close the next one, too.
			set(nil)
			l.Run("ip", "netns", "exec", l.NodeSpace, "ss", "--kill", "--tcp", "dst", routerIPv4.String())
			l.await(p, 20*time.Second, "up again without the Secret", func(s Session) bool { return isUp(s) && s.Flaps > 0 })
		})
	}
}

// untilNoOpen is twice openTimeout, because the router may reset the first connection, plus SYN
// retransmissions under load.
const untilNoOpen = 2*openTimeout + 40*time.Second

// A session needs TTL security (RFC 5082) on both sides.
func TestTTLSecurity(t *testing.T) {
	secured, open := testPeer(), testPeer()
	secured.SecurityHops = 1
	// Each case has its own router: without TTL security a FIN or NOTIFICATION does not reach it, and BIRD
	// refuses connections until its hold timer expires.
	for name, start := range routers("ttl-security hops 1", "ttl security on;") {
		t.Run("only "+name, func(t *testing.T) {
			l := start(t)
			p := l.speaker("fresh")
			p.set(Want{RouterID: nodeIPv4, Peers: []model.Peer{open}})
			l.await(p, untilNoOpen, "down where only the router has it", func(s Session) bool { return !isUp(s) && s.Message != "" })
		})
		t.Run("with "+name, func(t *testing.T) {
			l := start(t)
			p := l.speaker("fresh")
			p.set(Want{RouterID: nodeIPv4, Peers: []model.Peer{secured}})
			l.await(p, 20*time.Second, "up where both have it", isUp)
		})
	}
	for name, start := range routers("", "") {
		t.Run("not with "+name, func(t *testing.T) {
			l := start(t)
			p := l.speaker("fresh")
			p.set(Want{RouterID: nodeIPv4, Peers: []model.Peer{secured}})
			l.await(p, untilNoOpen, "down where only the node has it", tells("ttlSecurityHops"))
		})
	}
}

// The session uses the configured source address or interface; an unexpected AS number is reported.
func TestSourceAndSystem(t *testing.T) {
	for name, start := range routers("", "") {
		t.Run(name, func(t *testing.T) {
			l := start(t)
			l.Run("ip", "-n", l.NodeSpace, "address", "add", "198.51.100.77/24", "dev", "eth0")
			l.Run("ip", "-n", l.NodeSpace, "route", "replace", "198.51.100.0/24", "dev", "eth0", "src", "198.51.100.77")
			p := l.speaker("fresh")
			set := func(edit func(*model.Peer)) {
				t.Helper()
				peer := testPeer()
				edit(&peer)
				p.set(Want{RouterID: nodeIPv4, Peers: []model.Peer{peer}})
			}
			set(func(*model.Peer) {})
			l.await(p, 15*time.Second, "refused from an unknown source address", func(s Session) bool {
				return !isUp(s) && s.Message != ""
			})
			set(func(p *model.Peer) { p.Source = nodeIPv4 })
			l.await(p, 20*time.Second, "up from the source address", isUp)
			if got := p.session(peerName).Local; got != nodeIPv4 {
				t.Errorf("session uses local address %s", got)
			}
			set(func(p *model.Peer) { p.SourceInterface = "eth0" })
			l.await(p, 20*time.Second, "up from the interface's first address", isUp)
			set(func(p *model.Peer) { p.SourceInterface = "eth9" })
			l.await(p, 20*time.Second, "no such interface", tells("source interface eth9"))
			set(func(p *model.Peer) { p.Source, p.ASN = nodeIPv4, 64999 })
			l.await(p, 20*time.Second, "another system than expected", tells("Bad Peer AS"))
			set(func(p *model.Peer) { p.Source, p.ASN = nodeIPv4, 0 })
			l.await(p, 20*time.Second, "up with any external system", isUp)
			set(func(p *model.Peer) { p.Source, p.ASN = nodeIPv4, p.LocalASN })
			l.await(p, 20*time.Second, "internal, and the router is not", tells("Bad Peer AS"))
		})
	}
}

// Routes of a link-local session have the node's own next hop.
func TestLinkLocal(t *testing.T) {
	l := newLab(t, ` neighbor fe80::22 remote-as external
 neighbor fe80::22 interface eth0
 neighbor fe80::22 timers connect 1
 address-family ipv6 unicast
  neighbor fe80::22 activate
 exit-address-family
`)
	l.Run("ip", "-n", l.NodeSpace, "address", "add", "fe80::22/64", "dev", "eth0", "nodad")
	l.Run("ip", "-n", l.RouterSpace, "address", "add", "fe80::11/64", "dev", "eth0", "nodad")
	peer := testPeer()
	peer.Address, peer.IPv4 = netip.MustParseAddr("fe80::11%eth0"), false
	peer.Source = netip.MustParseAddr("fe80::22%eth0")
	p := l.speaker("fresh")
	p.set(Want{RouterID: nodeIPv4, Peers: []model.Peer{peer}, Routes: announce.Routes{peerName: {testRoute(vip6)}}})
	l.await(p, 20*time.Second, "up", isUp)
	l.awaitRoutes(10*time.Second, map[string]string{vip6: nodeIPv6.String()})
}
