// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/uplink"
)

// The announcements of a node with ingress on eth0 when another uplink appears that rejects the programs.
func TestUplinkWithoutPrograms(t *testing.T) {
	router := cluster().Peers[0].Spec.Router.Address
	peer := netip.MustParseAddr(router)
	tun := netdev.Link{Name: "tun0", Index: 7}
	occupied := netdev.Link{Name: "eth1", Index: 3, Ethernet: true}
	for name, test := range map[string]struct {
		other netdev.Link
		leads []int
		// early and late report whether the node announces at once and after the hold-off.
		early, late bool
	}{
		"no Ethernet, router on another uplink":    {tun, []int{2}, true, true},
		"no Ethernet, incoming uplink unknown":     {tun, nil, true, true},
		"no Ethernet, router on this uplink":       {tun, []int{7}, true, false},
		"no Ethernet, router on both uplinks":      {tun, []int{2, 7}, true, false},
		"occupied, router on another uplink":       {occupied, []int{2}, true, true},
		"occupied, router on this uplink":          {occupied, []int{3}, true, false},
		"occupied, incoming uplink unknown":        {occupied, nil, true, false},
		"occupied, with an address of the node":    {netdev.Link{Name: "eth1", Index: 3, Ethernet: true, HasAddress: true}, []int{2}, true, false},
		"no Ethernet, with an address of the node": {netdev.Link{Name: "tun0", Index: 7, HasAddress: true}, []int{2}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.leads = map[netip.Addr][]int{peer: {2}}
			n.keepsOff = map[string]bool{"eth1": true}
			objects := cluster()
			addService(objects, 1, false, 1, 0)
			l := newLoop(n, objects)
			mustPass(t, l, start)
			n.uplinks = append(n.uplinks, test.other)
			n.leads = map[netip.Addr][]int{peer: test.leads}
			if test.leads == nil {
				n.leads = nil
			}
			for _, step := range []struct {
				after     time.Duration
				announced bool
			}{{0, test.early}, {netdev.HoldOff - time.Millisecond, test.early}, {netdev.HoldOff, test.late}} {
				again, err := l.pass(start.Add(step.after))
				if n.routes[vipOf(1)] != step.announced {
					t.Errorf("after %s: routes %v, want a route: %t", step.after, n.routes, step.announced)
				}
				if step.announced && err != nil || len(n.observation.MissingPrograms) == 0 != step.announced {
					t.Errorf("after %s: error %v, missing programs %q, announced: %t", step.after, err, n.observation.MissingPrograms, step.announced)
				}
				if step.announced && (again == 0 || again > uplink.Recheck) {
					t.Errorf("after %s: next pass in %s, want a recheck", step.after, again)
				}
			}
			told := n.observation.Interfaces
			if len(told) != 2 || told[1].Name != test.other.Name || told[1].XDPMode != "None" || told[1].Message == "" {
				t.Errorf("interfaces = %+v, want the reason for the missing program", told)
			}
			n.uplinks = n.uplinks[:1]
			n.leads = map[netip.Addr][]int{peer: {2}}
			mustPass(t, l, start.Add(2*netdev.HoldOff))
			if !n.routes[vipOf(1)] {
				t.Error("not announced after the original uplinks were restored")
			}
		})
	}
}

// A peer behind an uplink without programs receives no route, other peers do.
func TestUplinkOfOnePeer(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 0)
	second := objects.Peers[0].DeepCopy()
	second.Name, second.Spec.Router.Address = "second", "198.51.100.250"
	objects.Peers = append(objects.Peers, second)
	n.uplinks = append(n.uplinks, netdev.Link{Name: "tun0", Index: 7})
	n.leads = map[netip.Addr][]int{
		netip.MustParseAddr(objects.Peers[0].Spec.Router.Address): {2},
		netip.MustParseAddr("198.51.100.250"):                     {7},
	}
	l := newLoop(n, objects)
	mustPass(t, l, start)
	if len(n.want.Routes[objects.Peers[0].Name]) != 1 || len(n.want.Routes["second"]) != 0 {
		t.Errorf("routes = %v, want one route only to the first peer", n.want.Routes)
	}
	if want := []string{"uplink tun0 lacks the programs"}; !slices.Equal(n.observation.MissingPrograms, want) {
		t.Errorf("missing programs = %q, want %q", n.observation.MissingPrograms, want)
	}
	if !slices.ContainsFunc(model.Build(objects).Peers, func(p model.Peer) bool { return p.Name == "second" }) {
		t.Fatal("the second peer is not in the model")
	}
}
