// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/test/bird"
)

func TestDescribeSpeaker(t *testing.T) {
	at := netip.MustParseAddrPort
	peer := &model.Peer{Address: netip.MustParseAddr("fe80::1%eth0"), Port: 179}
	for _, test := range []struct {
		name string
		c    netdev.Connection
		own  bool
		want bool
	}{
		{"own connection", netdev.Connection{Local: at("[fe80::2]:40000"), Remote: at("[fe80::1]:179"), Inode: 7}, true, false},
		{"connection of another process", netdev.Connection{Local: at("[fe80::2]:40000"), Remote: at("[fe80::1]:179"), Inode: 7}, false, true},
		{"connection accepted by another process", netdev.Connection{Local: at("[fe80::2]:179"), Remote: at("[fe80::1]:40000"), Inode: 7}, false, true},
		{"with another router", netdev.Connection{Local: at("[fe80::2]:40000"), Remote: at("[fe80::9]:179"), Inode: 7}, false, false},
		{"of another protocol", netdev.Connection{Local: at("[fe80::2]:40000"), Remote: at("[fe80::1]:22"), Inode: 7}, false, false},
	} {
		got := describeSpeaker(peer, []netdev.Connection{test.c}, func() map[uint64]bool { return map[uint64]bool{7: test.own} })
		if (got != "") != test.want {
			t.Errorf("%s: %q", test.name, got)
		}
	}
}

// Another speaker with a session to the router is reported, whichever connected first.
func TestOtherSpeaker(t *testing.T) {
	l := newLink(t)
	bird.Start(t, l.RouterSpace, birdNeighbor(""))
	peer := testPeer()
	// A graceful restart helper accepts the newer connection.
	peer.RestartTime = 0
	want := Want{RouterID: nodeIPv4, Peers: []model.Peer{peer}}
	first, second := l.speaker("fresh"), l.speaker("fresh")
	first.set(want)
	l.await(first, 20*time.Second, "up", isUp)
	second.set(want)
	l.await(second, 20*time.Second, "the other process reported", tells("another process of this node has a connection"))
	if session := first.session(peerName); !isUp(session) || strings.Contains(session.Message, "another process") {
		t.Errorf("first session: %+v", session)
	}
	first.kill()
	l.await(second, 20*time.Second, "established after the other process exited", isUp)
}
