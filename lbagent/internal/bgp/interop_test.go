// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Features that some routers do not have.
const (
	extendedNextHopFeature = "extended next hop"
	gracefulRestartFeature = "graceful restart"
	prefixLimitFeature     = "prefix limit"
	refreshFeature         = "refresh"
	roleFeature            = "role"
	ttlSecurityFeature     = "TTL security"
)

// interop is a router and a node with one session.
type interop struct {
	*lab
	router runningRouter
	p      *process
	want   Want
}

// interopTests are the tests of all routers, by feature. The router is configured with the options, the node
// with the edited peer.
var interopTests = map[string]struct {
	configure func(*options)
	edit      func(*model.Peer)
	verify    func(*interop)
}{
	"password and hold time": {
		func(o *options) { o.Password, o.HoldTime = password, 3 },
		func(p *model.Peer) {
			p.PasswordSecret, p.HoldTime, p.KeepaliveTime = secret, 30*time.Second, 10*time.Second
		},
		(*interop).secured,
	},
	ttlSecurityFeature: {
		func(o *options) { o.TTLSecurity = true }, func(p *model.Peer) { p.SecurityHops = 1 }, (*interop).established,
	},
	gracefulRestartFeature: {nil, nil, (*interop).restartNode},
	refreshFeature:         {nil, nil, (*interop).refresh},
	"restart": {nil, nil, func(i *interop) {
		i.established()
		i.router.restart()
		i.await(i.p, 30*time.Second, "a second session", func(s Session) bool { return isUp(s) && s.Flaps > 0 })
		i.awaitVIPs(vip4, vip6)
	}},
	"AS of the router": {nil, func(p *model.Peer) { p.ASN = 64999 }, func(i *interop) {
		i.p.set(i.want)
		i.await(i.p, 20*time.Second, "the router rejected", tells("of AS 64500 instead of AS 64999"))
	}},
	"AS of the node": {func(o *options) { o.ASN = 64999 }, nil, func(i *interop) {
		i.p.set(i.want)
		i.await(i.p, 20*time.Second, "the node rejected", tells("OPEN Message Error: Bad Peer AS"))
	}},
	prefixLimitFeature: {func(o *options) { o.Limit = 1 }, nil, func(i *interop) {
		// FRR compares the number of routes before it adds one.
		i.want.Routes[peerName] = append(i.want.Routes[peerName], testRoute("203.0.113.11"), testRoute("203.0.113.12"))
		i.p.set(i.want)
		i.await(i.p, 20*time.Second, "the limit", tells("Cease: Maximum Number of Prefixes Reached"))
	}},
	roleFeature: {func(o *options) { o.Role = true }, nil, (*interop).established},
	extendedNextHopFeature: {
		func(o *options) { o.Router, o.Node, o.Extended = routerIPv6, nodeIPv6, true },
		func(p *model.Peer) { p.Address, p.ExtendedNextHop = routerIPv6, true },
		func(i *interop) {
			i.want.Routes[peerName][0].NextHop = nodeIPv6
			i.established()
		},
	},
}

// Each router accepts the node's sessions and routes.
func TestInterop(t *testing.T) {
	for _, of := range implementations {
		for name, test := range interopTests {
			if slices.Contains(of.lacks, name) {
				continue
			}
			t.Run(of.name+" "+name, func(t *testing.T) {
				t.Parallel()
				l := newLink(t)
				o := options{Router: routerIPv4, Node: nodeIPv4, ASN: testPeer().LocalASN, Dir: t.TempDir()}
				if test.configure != nil {
					test.configure(&o)
				}
				i := &interop{lab: l, router: of.start(l, o), p: l.speaker("fresh"), want: testWant(testRoute(vip4), testRoute(vip6))}
				if test.edit != nil {
					test.edit(&i.want.Peers[0])
				}
				i.want.Passwords = map[string]string{secret: o.Password}
				test.verify(i)
			})
		}
	}
}

func (i *interop) awaitVIPs(vips ...string) {
	i.t.Helper()
	want := map[string]bool{}
	for _, vip := range vips {
		want[vip] = true
	}
	i.awaitWithout(20*time.Second, "the routes at the router", func() bool { return maps.Equal(i.router.routes(), want) })
}

// established also withdraws a route and announces it again.
func (i *interop) established() {
	i.t.Helper()
	i.p.set(i.want)
	i.await(i.p, 30*time.Second, "up", isUp)
	i.awaitVIPs(vip4, vip6)
	some := i.want
	some.Routes = announce.Routes{peerName: i.want.Routes[peerName][:1]}
	i.p.set(some)
	i.awaitVIPs(vip4)
	i.p.set(i.want)
	i.awaitVIPs(vip4, vip6)
}

// secured needs the right password, and then a KEEPALIVE each second.
func (i *interop) secured() {
	i.want.Passwords = map[string]string{secret: "wrong"}
	i.p.set(i.want)
	i.await(i.p, 20*time.Second, "down with a wrong password", tells("password"))
	i.want.Passwords = map[string]string{secret: password}
	i.established()
	i.await(i.p, 20*time.Second, "up for longer than the hold time", func(s Session) bool {
		if s.Flaps > 0 {
			i.t.Fatalf("the session was lost: %+v", s)
		}
		return time.Since(s.Since) > 4*time.Second
	})
}

func (i *interop) restartNode() {
	i.established()
	i.p.kill()
	retained := func() {
		i.t.Helper()
		if routes := i.router.routes(); !routes[vip4] || !routes[vip6] {
			i.t.Fatalf("the router lost routes: %v", routes)
		}
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		retained()
	}
	i.p = i.speaker("restarting")
	i.want.Routes[peerName] = append(i.want.Routes[peerName], testRoute("203.0.113.11"))
	i.p.set(i.want)
	i.awaitWithout(20*time.Second, "one more route", func() bool {
		retained()
		return i.router.routes()["203.0.113.11"]
	})
}

func (i *interop) refresh() {
	i.established()
	sent := i.p.session(peerName).UpdatesSent
	i.router.refresh()
	i.await(i.p, 20*time.Second, "the routes sent again", func(s Session) bool { return isUp(s) && s.UpdatesSent > sent })
	i.awaitVIPs(vip4, vip6)
}
