// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lbagent

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/test/frr"
)

// secondRouter starts another router behind a second uplink, in another network than the first router.
func (w *world) secondRouter(neighbors string) *frr.Router {
	w.t.Helper()
	const namespace = "router2"
	w.t.Cleanup(func() {
		_ = exec.Command("ip", "link", "delete", "eth1").Run()
		_ = exec.Command("ip", "netns", "delete", namespace).Run()
	})
	for _, command := range []string{
		"ip netns add " + namespace,
		"ip -n " + namespace + " link set lo up",
		"ip link add eth1 type veth peer name eth1 netns " + namespace,
		// No link-local address except the one below.
		"ip link set eth1 addrgenmode none",
		"ip address add 203.0.113.130/25 dev eth1",
		"ip address add fe80::22/64 dev eth1 nodad",
		"ip link set eth1 up",
		"ip -n " + namespace + " link set eth1 addrgenmode none",
		"ip -n " + namespace + " address add 203.0.113.129/25 dev eth1",
		"ip -n " + namespace + " address add fe80::11/64 dev eth1 nodad",
		"ip -n " + namespace + " link set eth1 up",
	} {
		run(w.t, command)
	}
	return frr.Start(w.t, namespace, neighbors)
}

func (w *world) peer(name string, edit func(*millracev1beta1.LBPeerSpec)) *millracev1beta1.LBPeer {
	w.t.Helper()
	peer := &millracev1beta1.LBPeer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: millracev1beta1.LBPeerSpec{
		PeerASN: 64500, LocalASN: 64512,
		HoldTime:         &metav1.Duration{Duration: 9 * time.Second},
		ConnectRetryTime: &metav1.Duration{Duration: time.Second},
	}}
	edit(&peer.Spec)
	w.create(peer)
	return peer
}

const unnumberedNeighbor = ` neighbor eth1 interface remote-as 64512
 neighbor eth1 ttl-security hops 1
 address-family ipv4 unicast
  neighbor eth1 activate
 exit-address-family
`

const secondNeighbor = ` neighbor 203.0.113.130 remote-as 64512
 address-family ipv4 unicast
  neighbor 203.0.113.130 activate
 exit-address-family
`

// A node with two uplinks announces to each router its address on that uplink. An external router would
// reject a next hop that is not directly connected.
func TestNextHopOfEachUplink(t *testing.T) {
	w := newWorld(t)
	w.install()
	w.populate()
	second := w.secondRouter(secondNeighbor + unnumberedNeighbor)
	peer := w.peer("second", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Address = "203.0.113.129" })
	w.start()
	w.Await(30*time.Second, "the VIP at the first router", w.announced)
	second.Await(30*time.Second, "the VIP at the second router by the node's address there", func() bool {
		return second.KernelRoutes()[vip] == "203.0.113.130"
	})
	w.Await(10*time.Second, "the programs on both uplinks", func() bool {
		interfaces := w.report().Status.Interfaces
		return len(interfaces) == 2 && interfaces[1].XDPMode == millracev1beta1.XDPNative
	})
	if err := w.client.Delete(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
	w.checkUnnumbered(second)
}

// checkUnnumbered requires a session with a router that is found by its advertisements and finds the node by those of the
// agent. The router is lost and replaced by one with another link-local address.
func (w *world) checkUnnumbered(router *frr.Router) {
	w.t.Helper()
	w.peer("unnumbered", func(spec *millracev1beta1.LBPeerSpec) {
		hops := int32(1)
		spec.Router.Interface, spec.Families = "eth1", []millracev1beta1.AddressFamily{millracev1beta1.FamilyIPv4}
		spec.ExtendedNextHop, spec.TTLSecurityHops = true, &hops
	})
	w.peer("absent", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Interface = "eth7" })
	announced := func() bool { return router.KernelRoutes()[vip] == "fe80::22" }
	router.Await(30*time.Second, "the VIP at the unnumbered router", announced)
	w.Await(10*time.Second, "a problem of the LBPeer whose interface does not exist", func() bool {
		return slices.ContainsFunc(w.report().Status.Conditions, func(condition metav1.Condition) bool {
			return strings.Contains(condition.Message, "LBPeer absent: spec.router.interface: this node has no interface eth7")
		})
	})
	run(w.t, "ip -n router2 address delete fe80::11/64 dev eth1")
	router.Await(30*time.Second, "the loss of the router", func() bool { return !announced() })
	run(w.t, "ip -n router2 address add fe80::33/64 dev eth1 nodad")
	router.Await(60*time.Second, "the VIP at the router with another address", announced)
	w.Await(10*time.Second, "the session with this address", func() bool {
		return slices.ContainsFunc(w.report().Status.Sessions, func(session millracev1beta1.SessionStatus) bool {
			return session.Peer == "unnumbered" && session.Address == "fe80::33%eth1" && session.State == millracev1beta1.SessionEstablished
		})
	})
}

// The router is the gateway of the node's default route, which is added and changed.
func TestGatewayIsPeer(t *testing.T) {
	w := newWorld(t)
	w.install()
	w.populate()
	second := w.secondRouter(secondNeighbor + ` neighbor fe80::22 remote-as external
 neighbor fe80::22 interface eth1
 neighbor fe80::22 capability extended-nexthop
 address-family ipv4 unicast
  neighbor fe80::22 activate
 exit-address-family
`)
	w.peer("gateway", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Gateway = millracev1beta1.FamilyIPv4 })
	w.peer("gateway6", func(spec *millracev1beta1.LBPeerSpec) {
		spec.Router.Gateway, spec.Families = millracev1beta1.FamilyIPv6, []millracev1beta1.AddressFamily{millracev1beta1.FamilyIPv4}
		spec.ExtendedNextHop = true
	})
	w.start()
	w.Await(30*time.Second, "the VIP at the router with an address", w.announced)
	if routes := second.KernelRoutes(); len(routes) > 0 {
		t.Errorf("the second router has routes before it is a gateway: %v", routes)
	}
	// Via the link-local gateway, then via the other one only.
	run(t, "ip -6 route add default via fe80::11 dev eth1")
	second.Await(30*time.Second, "the VIP at the link-local gateway, by the node's link-local address", func() bool {
		return second.KernelRoutes()[vip] == "fe80::22"
	})
	if err := w.client.Delete(t.Context(), &millracev1beta1.LBPeer{ObjectMeta: metav1.ObjectMeta{Name: "gateway6"}}); err != nil {
		t.Fatal(err)
	}
	second.Await(30*time.Second, "no session with it", func() bool { return second.KernelRoutes()[vip] == "" })
	at := func() bool { return second.KernelRoutes()[vip] == "203.0.113.130" }
	run(t, "ip route add default via 203.0.113.129")
	second.Await(30*time.Second, "the VIP at the gateway", at)
	run(t, "ip route replace default via 198.51.100.9")
	second.Await(30*time.Second, "withdrawn after the gateway changed", func() bool { return !at() })
	if !w.announced() {
		t.Error("the router with a peerAddress lost the VIP")
	}
}

// An aggregate replaces the routes to its VIPs at the router while the advertisement requests it and one of
// its VIPs is announced.
func TestAggregateAtRouter(t *testing.T) {
	w := newWorld(t)
	w.install()
	w.populate()
	w.start()
	w.Await(30*time.Second, "the VIP at the router", w.announced)
	aggregate := func(length int32) {
		t.Helper()
		list := &millracev1beta1.VIPAdvertisementList{}
		if err := w.client.List(t.Context(), list); err != nil || len(list.Items) != 1 {
			t.Fatalf("%d VIPAdvertisements, error %v", len(list.Items), err)
		}
		list.Items[0].Spec.AggregationLength = nil
		if length > 0 {
			list.Items[0].Spec.AggregationLength = &length
		}
		if err := w.client.Update(t.Context(), &list.Items[0]); err != nil {
			t.Fatal(err)
		}
	}
	at := func(prefix string) func() bool {
		return func() bool { return maps.Equal(w.KernelRoutes(), map[string]string{prefix: nodeAddress}) }
	}
	aggregate(24)
	w.Await(20*time.Second, "only the aggregate at the router", at("203.0.113.0/24"))
	aggregate(28)
	w.Await(20*time.Second, "only the other aggregate", at("203.0.113.0/28"))
	aggregate(0)
	w.Await(20*time.Second, "the VIP alone", at(vip))
	aggregate(24)
	w.Await(20*time.Second, "the aggregate again", at("203.0.113.0/24"))
	if err := w.client.Delete(t.Context(), &millracev1beta1.VIP{ObjectMeta: metav1.ObjectMeta{Name: vip}}); err != nil {
		t.Fatal(err)
	}
	w.Await(20*time.Second, "no route without a VIP", func() bool { return len(w.KernelRoutes()) == 0 })
}

// Routers of a dynamic range connect. Each has a session, named by LBPeer and address; advertisements for the
// LBPeer apply to all.
func TestRangeOfRouters(t *testing.T) {
	w := newWorld(t)
	w.install()
	w.populate()
	second := w.secondRouter(secondNeighbor + " neighbor 203.0.113.130 timers connect 1\n")
	w.peer("rack", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Range = "203.0.113.128/28" })
	w.start()
	w.Await(30*time.Second, "the VIP at the router with an address", w.announced)
	at := func() bool { return second.KernelRoutes()[vip] == "203.0.113.130" }
	second.Await(60*time.Second, "the VIP at the router of the range", at)
	w.Await(20*time.Second, "its session in the LBNodeReport", func() bool {
		return slices.ContainsFunc(w.report().Status.Sessions, func(s millracev1beta1.SessionStatus) bool {
			return s.Peer == "rack/203.0.113.129" && s.Address == "203.0.113.129" && s.State == millracev1beta1.SessionEstablished
		})
	})
	second.RestartBGP()
	second.Await(60*time.Second, "the VIP at the router after its restart", at)
	if err := w.client.Delete(t.Context(), &millracev1beta1.LBPeer{ObjectMeta: metav1.ObjectMeta{Name: "rack"}}); err != nil {
		t.Fatal(err)
	}
	second.Await(30*time.Second, "no route without the LBPeer", func() bool { return !at() })
}
