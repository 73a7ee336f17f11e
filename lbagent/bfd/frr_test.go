// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	protocol "github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
	"github.com/millrace-lb/millrace/lbagent/test/frr"
)

const frrPeers = ` peer 198.51.100.2
  receive-interval 100
  transmit-interval 100
 peer 2001:db8::2
  receive-interval 100
  transmit-interval 100
 peer 198.51.100.2 multihop local-address 198.51.100.1
  receive-interval 100
  transmit-interval 100
 peer 2001:db8::2 multihop local-address 2001:db8::1
  receive-interval 100
  transmit-interval 100
`

type frrPeer struct {
	Peer                string `json:"peer"`
	Multihop            bool   `json:"multihop"`
	Status              string `json:"status"`
	Diagnostic          string `json:"diagnostic"`
	RemoteDiagnostic    string `json:"remote-diagnostic"`
	ReceiveInterval     int    `json:"remote-receive-interval"`
	TransmitInterval    int    `json:"remote-transmit-interval"`
	EchoReceiveInterval int    `json:"remote-echo-receive-interval"`
	SessionDown         int    `json:"session-down"`
}

type frrLab struct {
	*lab
	frr *frr.Router
}

func newFRRLab(t *testing.T, configuration string) *frrLab {
	t.Helper()
	l := &frrLab{lab: newLab(t)}
	l.frr = frr.Start(t, l.RouterSpace, "")
	l.frr.StartBFD(configuration)
	return l
}

// shown returns bfdd's sessions: state and number of losses.
func (l *frrLab) shown() []frrPeer {
	l.t.Helper()
	var states, counters []frrPeer
	l.frr.Show("show bfd peers json", &states)
	l.frr.Show("show bfd peers counters json", &counters)
	for i, state := range states {
		for _, counter := range counters {
			if counter.Peer == state.Peer && counter.Multihop == state.Multihop {
				states[i].SessionDown = counter.SessionDown
			}
		}
	}
	return states
}

func (l *frrLab) awaitAll(status string, change func(frrPeer) bool) {
	l.t.Helper()
	await(l.t, upWithin, "all of FRR's sessions are "+status, func() (bool, any) {
		shown := l.shown()
		for _, peer := range shown {
			if peer.Status != status || change != nil && !change(peer) {
				return false, shown
			}
		}
		return len(shown) > 0, shown
	})
}

// Sessions of all four kinds come up with FRR, and neither a replaced process nor a shutdown counts as a
// loss.
func TestFRR(t *testing.T) {
	l := newFRRLab(t, frrPeers)
	p := l.start(l.NodeSpace, "node")
	p.Set(control.Want{Peers: peers()})
	for _, peer := range peers() {
		p.awaitState(peer.Name, protocol.Up)
	}
	fast := func(peer frrPeer) bool {
		return peer.ReceiveInterval == 100 && peer.TransmitInterval == 100 && peer.EchoReceiveInterval == 0
	}
	l.awaitAll("up", fast)
	await(t, upWithin, "FRR transmits every 100 ms", func() (bool, any) {
		session := p.session(multihop6)
		return session.DetectionTime == 300*ms && session.TransmitInterval == 100*ms, session
	})

	since := p.session(routerName4).Since
	p.end(syscall.SIGTERM)
	l.awaitAll("up", func(peer frrPeer) bool { return peer.TransmitInterval == 10000 && peer.SessionDown == 0 })
	// Longer than the previously negotiated detection time.
	time.Sleep(time.Second)
	p = l.start(l.NodeSpace, "node")
	p.Set(control.Want{Peers: peers()})
	for _, peer := range peers() {
		if session := p.awaitState(peer.Name, protocol.Up); session.Losses != 0 {
			t.Errorf("%s: %d losses", peer.Name, session.Losses)
		}
	}
	l.awaitAll("up", fast)
	for _, peer := range l.shown() {
		if peer.SessionDown != 0 {
			t.Errorf("FRR reports a lost session: %+v", peer)
		}
	}
	if got := p.session(routerName4).Since; !got.Equal(since) {
		t.Errorf("session up since %s, previously since %s", got, since)
	}

	// An administrative shutdown of the peer is no loss.
	l.frr.Configure("bfd", "peer 198.51.100.2", "shutdown")
	session := p.awaitState(routerName4, protocol.Down)
	if session.PeerState != protocol.AdminDown || session.Losses != 0 || session.Message == "" {
		t.Errorf("after FRR's shutdown: session %+v", session)
	}
	l.frr.Configure("bfd", "peer 198.51.100.2", "no shutdown")
	p.awaitState(routerName4, protocol.Up)

	p.Set(control.Want{})
	l.awaitAll("down", func(peer frrPeer) bool { return peer.Diagnostic == "neighbor signaled session down" })
}

// A session uses the configured source address, also link-local, instead of the kernel's choice.
func TestFRRSource(t *testing.T) {
	l := newFRRLab(t, " peer 198.51.100.77 interface eth0\n peer fe80::77 interface eth0\n")
	l.Run("ip", "-n", l.NodeSpace, "address", "add", "198.51.100.77/24", "dev", "eth0")
	l.Run("ip", "-n", l.NodeSpace, "address", "add", "fe80::77/64", "dev", "eth0", "nodad")
	l.Run("ip", "-n", l.RouterSpace, "address", "add", "fe80::11/64", "dev", "eth0", "nodad")
	p := l.start(l.NodeSpace, "node")
	global, linkLocal := peers()[0], peers()[0]
	global.Source = netip.MustParseAddr("198.51.100.77")
	linkLocal.Name = "link-local"
	linkLocal.Address, linkLocal.Source = netip.MustParseAddr("fe80::11%eth0"), netip.MustParseAddr("fe80::77%eth0")
	p.Set(control.Want{Peers: []control.Peer{global, linkLocal}})
	p.awaitState(global.Name, protocol.Up)
	p.awaitState(linkLocal.Name, protocol.Up)
	l.awaitAll("up", nil)
}

// Changes of FRR's timers and of its echo mode change an established session.
func TestFRRChanges(t *testing.T) {
	l := newFRRLab(t, frrPeers)
	p := l.start(l.NodeSpace, "node")
	p.Set(control.Want{Peers: peers()[:1]})
	p.awaitState(routerName4, protocol.Up)
	l.frr.Configure("bfd", "peer 198.51.100.2", "transmit-interval 400", "detect-multiplier 5", "echo-mode")
	await(t, upWithin, "FRR's new interval is used", func() (bool, any) {
		session := p.session(routerName4)
		return session.DetectionTime == 5*400*ms, session
	})
	changed := peers()[:1]
	changed[0].Parameters = protocol.Parameters{TransmitInterval: 250 * ms, ReceiveInterval: 500 * ms, DetectMultiplier: 4}
	p.Set(control.Want{Peers: changed})
	await(t, upWithin, "our new intervals are used", func() (bool, any) {
		session := p.session(routerName4)
		return session.DetectionTime == 5*500*ms && session.TransmitInterval == 250*ms, session
	})
	await(t, upWithin, "FRR has the new intervals", func() (bool, any) {
		shown := l.shown()
		for _, peer := range shown {
			if peer.Peer == nodeIPv4.String() && !peer.Multihop {
				return peer.TransmitInterval == 250 && peer.ReceiveInterval == 500, shown
			}
		}
		return false, shown
	})
	if session := p.session(routerName4); session.Losses != 0 || session.State != protocol.Up {
		t.Errorf("%+v", session)
	}
}

// FRR detects a stopped process, and both ends a cut link, within the detection time and the polling delay.
func TestFRRDetects(t *testing.T) {
	// vtysh takes a part of it, and most under load.
	const slack = 700 * ms
	l := newFRRLab(t, frrPeers)
	p := l.start(l.NodeSpace, "node")
	p.Set(control.Want{Peers: peers()})
	for _, peer := range peers() {
		p.awaitState(peer.Name, protocol.Up)
	}
	fast := func(peer frrPeer) bool { return peer.TransmitInterval == 100 && peer.ReceiveInterval == 100 }
	l.awaitAll("up", fast)
	await(t, upWithin, "300 ms are negotiated", func() (bool, any) {
		session := p.session(routerName4)
		return session.DetectionTime == 300*ms, session
	})
	l.Run("ip", "-n", l.RouterSpace, "link", "set", "eth0", "down")
	took := await(t, 300*ms+slack, "the node detects the failure", func() (bool, any) {
		session := p.session(routerName4)
		return session.State != protocol.Up && session.Losses == 1, session
	})
	t.Logf("link cut: detected after %s", took)
	l.Run("ip", "-n", l.RouterSpace, "link", "set", "eth0", "up")
	l.Run("ip", "-n", l.RouterSpace, "address", "replace", routerIPv6.String()+"/64", "dev", "eth0", "nodad")
	for _, peer := range peers() {
		p.awaitState(peer.Name, protocol.Up)
	}
	l.awaitAll("up", fast)
	p.signal(syscall.SIGSTOP)
	took = await(t, 300*ms+slack, "FRR knows", func() (bool, any) {
		shown := l.shown()
		for _, peer := range shown {
			if peer.Status != "down" {
				return false, shown
			}
		}
		return true, shown
	})
	t.Logf("process stopped: FRR detected it after %s", took)
	p.signal(syscall.SIGCONT)
	p.awaitState(routerName4, protocol.Up)
}
