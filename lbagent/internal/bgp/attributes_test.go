// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/test/bird"
)

// attributed returns a route with all attributes of an external session.
func attributed() announce.Route {
	route, med := testRoute(vip4), uint32(77)
	route.Communities = []uint32{64512<<16 | 100, 0xffff0000}
	route.LargeCommunities = [][3]uint32{{64512, 1, 100}}
	route.ExtendedCommunities = []desired.ExtendedCommunity{
		{Subtype: desired.RouteTarget, ASN: 64512, Value: 100000}, {Subtype: desired.SiteOfOrigin, ASN: 4200000001, Value: 7},
	}
	route.MED, route.Prepend, route.Weight = &med, 2, 3
	return route
}

// A changed route is one UPDATE; other routes are not sent again.
func TestAttributesAtFRR(t *testing.T) {
	l := newLab(t, staticNeighbor)
	p := l.speaker("fresh")
	p.set(testWant(testRoute(vip4), testRoute(vip6)))
	l.awaitRoutes(20*time.Second, both)
	// Two UPDATEs, then two End-of-RIBs.
	l.Await(10*time.Second, "the End-of-RIBs", func() bool { return l.updates() >= 4 })
	before, session := l.updates(), l.neighborState()

	p.set(testWant(attributed(), testRoute(vip6)))
	var route struct {
		Paths []struct {
			AsPath            struct{ String string }
			Metric            int
			Community         struct{ String string }
			LargeCommunity    struct{ String string }
			ExtendedCommunity struct{ String string }
		}
	}
	l.Await(5*time.Second, "the attributes", func() bool {
		l.Show("show bgp ipv4 unicast "+vip4+"/32 json", &route)
		return len(route.Paths) == 1 && route.Paths[0].Metric == 77
	})
	path := route.Paths[0]
	for got, want := range map[string]string{
		path.AsPath.String:            "64512 64512 64512",
		path.Community.String:         "64512:100 graceful-shutdown",
		path.LargeCommunity.String:    "64512:1:100",
		path.ExtendedCommunity.String: "RT:64512:100000 SoO:4200000001:7 LB:64512:375000000 (3.000 Gbps)",
	} {
		if got != want {
			t.Errorf("router has %q, want %q", got, want)
		}
	}
	if got := l.updates() - before; got != 1 {
		t.Errorf("%d UPDATEs for one route, want 1", got)
	}
	if after := l.neighborState(); after != session {
		t.Errorf("the session changed from %+v to %+v", session, after)
	}
}

func (l *lab) updates() int {
	l.t.Helper()
	var neighbors map[string]struct {
		MessageStats struct {
			UpdatesRecv int `json:"updatesRecv"`
		} `json:"messageStats"`
	}
	l.Show("show bgp neighbors json", &neighbors)
	return neighbors[nodeIPv4.String()].MessageStats.UpdatesRecv
}

func TestAttributesAtBIRD(t *testing.T) {
	l := newLink(t)
	router := bird.Start(t, l.RouterSpace, birdNeighbor(""))
	p := l.speaker("fresh")
	p.set(testWant(attributed(), testRoute(vip6)))
	l.await(p, 20*time.Second, "up", isUp)
	var shown string
	router.Await(10*time.Second, "both routes at BIRD", func() bool {
		shown = router.Show("show route all for " + vip4)
		return strings.Contains(shown, vip4+"/32") && strings.Contains(router.Show("show route for "+vip6), vip6)
	})
	for _, want := range []string{
		"BGP.as_path: 64512 64512 64512\n", "BGP.med: 77\n", "BGP.community: (64512,100) (65535,0)\n",
		"BGP.large_community: (64512, 1, 100)\n", "BGP.ext_community: (rt, 64512, 100000) (ro, 4200000001, 7) (unknown 0x4004, 64512, 1303564382)\n",
		"BGP.next_hop: " + nodeIPv4.String() + "\n",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("output of BIRD does not contain %q:\n%s", want, shown)
		}
	}
}

// Internal sessions have LOCAL_PREF and no prepending.
func TestAttributesWithinOneSystem(t *testing.T) {
	l := newLab(t, strings.ReplaceAll(staticNeighbor, "remote-as 64512", "remote-as internal"))
	route, preference := attributed(), uint32(250)
	route.LocalPreference = &preference
	peer := testPeer()
	peer.LocalASN = peer.ASN
	p := l.speaker("fresh")
	p.set(Want{RouterID: nodeIPv4, Peers: []model.Peer{peer}, Routes: announce.Routes{peerName: {route}}})
	var shown struct {
		Paths []struct {
			AsPath struct{ String string }
			LocPrf int
		}
	}
	l.Await(20*time.Second, "the route", func() bool {
		l.Show("show bgp ipv4 unicast "+vip4+"/32 json", &shown)
		return len(shown.Paths) == 1
	})
	if path := shown.Paths[0]; path.LocPrf != 250 || strings.Contains(path.AsPath.String, "645") {
		t.Errorf("router has %+v, want local preference 250 and an empty path", path)
	}
}
