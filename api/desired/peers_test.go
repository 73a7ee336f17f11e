// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func peerAged(name string, age int, change func(*millracev1beta1.LBPeerSpec)) millracev1beta1.LBPeer {
	peer := millracev1beta1.LBPeer{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(epoch.Add(time.Duration(age) * time.Second))},
		Spec:       millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Address: "198.51.100.1"}, PeerASN: 64512, LocalASN: 64513, PeerPort: 179},
	}
	if change != nil {
		change(&peer.Spec)
	}
	return peer
}

func seconds(n int) *metav1.Duration {
	return &metav1.Duration{Duration: time.Duration(n) * time.Second}
}

func rack(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"rack": name}}
}

func TestPeers(t *testing.T) {
	type spec = millracev1beta1.LBPeerSpec
	type peers = []millracev1beta1.LBPeer
	tooFar, most := int32(256), int32(255)
	one := func(change func(*spec)) peers { return peers{peerAged("p", 0, change)} }
	tests := []struct {
		name     string
		objects  peers
		problems []string
	}{
		{"valid", one(nil), nil},
		{"no address", one(func(s *spec) { s.Router.Address = "" }), []string{`p Invalid spec.router.address: "" is not an IP address`}},
		{"multicast", one(func(s *spec) { s.Router.Address = "ff02::1" }), []string{"p Invalid spec.router.address: ff02::1 is multicast (ff00::/8), not the address of a router"}},
		{"unspecified", one(func(s *spec) { s.Router.Address = "0.0.0.0" }), []string{"p Invalid spec.router.address: 0.0.0.0 is unspecified"}},
		{"zone", one(func(s *spec) { s.Router.Address = "fe80::1%eth0" }), []string{`p Invalid spec.router.address: "fe80::1%eth0" has a zone`}},
		{"IPv6 link-local", one(func(s *spec) { s.Router.Address = "fe80::1" }), []string{
			"p Invalid spec.router.interface: is required, because fe80::1 is link-local",
		}},
		{"IPv6 link-local with an interface", one(func(s *spec) { s.Router.Address, s.Router.Interface = "fe80::1", "eth0" }), nil},
		{"interface of a global address", one(func(s *spec) { s.Router.Interface = "eth0" }), []string{
			"p Invalid spec.router.interface: requires an IPv6 link-local address",
		}},
		{"the router on an interface", one(func(s *spec) {
			s.Router.Address, s.Router.Interface, s.ExtendedNextHop, s.Families = "", "eth0", true, []millracev1beta1.AddressFamily{"IPv4", "IPv6"}
		}), nil},
		{"a source on an interface", one(func(s *spec) { s.Router.Address, s.Router.Interface, s.SourceAddress = "", "eth0", "198.51.100.2" }), []string{
			"p Invalid spec.sourceAddress: is mutually exclusive with a router by interface",
		}},
		{"interface and range", one(func(s *spec) { s.Router.Address, s.Router.Interface, s.Router.Range = "", "eth0", "198.51.100.0/28" }), []string{
			"p Invalid spec.router.interface: is mutually exclusive with spec.router.range",
		}},
		{"a number of routers on an interface", one(func(s *spec) { s.Router.Address, s.Router.Interface, s.Router.MaxPeers = "", "eth0", &most }), []string{
			"p Invalid spec.router.maxPeers: requires spec.router.range",
		}},
		{"two interfaces", peers{
			peerAged("p", 1, func(s *spec) { s.Router.Address, s.Router.Interface = "", "eth0" }),
			peerAged("q", 0, func(s *spec) { s.Router.Address, s.Router.Interface = "", "eth1" }),
		}, nil},
		{"the interface twice", peers{
			peerAged("p", 1, func(s *spec) { s.Router.Address, s.Router.Interface = "", "eth0" }),
			peerAged("q", 0, func(s *spec) { s.Router.Address, s.Router.Interface = "", "eth0" }),
		}, []string{`p Invalid spec.router.interface: the router on eth0 port 179 belongs to the older LBPeer`}},
		{"the gateway", one(func(s *spec) { s.Router.Address, s.Router.Gateway = "", "IPv6" }), nil},
		{"the gateway of no family", one(func(s *spec) { s.Router.Address, s.Router.Gateway = "", "any" }), []string{
			`p Invalid spec.router.gateway: "any" is neither IPv4 nor IPv6`,
		}},
		{"IPv6 next hops", one(func(s *spec) {
			s.Router.Address, s.ExtendedNextHop, s.Families = "2001:db8::1", true, []millracev1beta1.AddressFamily{"IPv4"}
		}), nil},
		{"IPv6 next hops without IPv4 routes", one(func(s *spec) { s.Router.Address, s.ExtendedNextHop = "2001:db8::1", true }), []string{
			"p Invalid spec.extendedNextHop: applies to IPv4 routes",
		}},
		{"IPv6 next hops over IPv4", one(func(s *spec) { s.ExtendedNextHop = true }), []string{"p Invalid spec.extendedNextHop: requires an IPv6 session"}},
		{"IPv6 next hops to the IPv4 gateway", one(func(s *spec) { s.Router.Address, s.Router.Gateway, s.ExtendedNextHop = "", "IPv4", true }), []string{
			"p Invalid spec.extendedNextHop: requires an IPv6 session",
		}},
		{"a range", one(func(s *spec) { s.Router.Address, s.Router.Range = "", "198.51.100.0/28" }), nil},
		{"a range that is none", one(func(s *spec) { s.Router.Address, s.Router.Range = "", "198.51.100.1" }), []string{
			`p Invalid spec.router.range: "198.51.100.1" is not a prefix`,
		}},
		{"a link-local range", one(func(s *spec) { s.Router.Address, s.Router.Range = "", "fe80::/64" }), []string{
			"p Invalid spec.router.range: fe80::/64 is link-local (fe80::/10), not a network of routers",
		}},
		{"a range beside an address", one(func(s *spec) { s.Router.Range = "198.51.100.0/28" }), []string{
			"p Invalid spec.router.range: is mutually exclusive with spec.router.address",
		}},
		{"a range with a source", one(func(s *spec) { s.Router.Address, s.Router.Range, s.SourceInterface = "", "198.51.100.0/28", "eth0" }), []string{
			"p Invalid spec.router.range: is mutually exclusive with",
		}},
		{"too many routers", one(func(s *spec) { s.Router.Address, s.Router.Range, s.Router.MaxPeers = "", "198.51.100.0/28", &most }), []string{
			"p Invalid spec.router.maxPeers: 255 is not between 1 and 64",
		}},
		{"a number of routers without a range", one(func(s *spec) { s.Router.MaxPeers = &most }), []string{"p Invalid spec.router.maxPeers: requires spec.router.range"}},
		{"ranges with common routers", peers{
			peerAged("p", 1, func(s *spec) { s.Router.Address, s.Router.Range = "", "198.51.100.0/24" }),
			peerAged("q", 0, func(s *spec) { s.Router.Address, s.Router.Range = "", "198.51.100.0/28" }),
		}, []string{`p Invalid spec.router.range: 198.51.100.0/24 or a part of it on port 179 belongs to the older LBPeer`}},
		{"ranges without", peers{
			peerAged("p", 1, func(s *spec) { s.Router.Address, s.Router.Range = "", "198.51.100.0/28" }),
			peerAged("q", 0, func(s *spec) { s.Router.Address, s.Router.Range = "", "198.51.100.16/28" }),
			peerAged("r", 2, nil),
		}, nil},
		{"gateway and address", one(func(s *spec) { s.Router.Gateway = "IPv4" }), []string{"p Invalid spec.router.gateway: is mutually exclusive with spec.router.address"}},
		{"gateway and interface", one(func(s *spec) { s.Router.Address, s.Router.Gateway, s.Router.Interface = "", "IPv6", "eth0" }), []string{
			"p Invalid spec.router.interface: is mutually exclusive with spec.router.gateway",
		}},
		{"source of another family than the gateway", one(func(s *spec) { s.Router.Address, s.Router.Gateway, s.SourceAddress = "", "IPv4", "2001:db8::2" }), []string{
			"p Invalid spec.sourceAddress: 2001:db8::2 does not have the family of spec.router.gateway, IPv4",
		}},
		{"the gateway twice", peers{
			peerAged("p", 1, func(s *spec) { s.Router.Address, s.Router.Gateway = "", "IPv4" }),
			peerAged("q", 0, func(s *spec) { s.Router.Address, s.Router.Gateway = "", "IPv4" }),
		}, []string{`p Invalid spec.router.gateway: the IPv4 gateway port 179 belongs to the older LBPeer`}},
		{"both kinds of AS number", one(func(s *spec) { s.DynamicASN = "External" }), []string{
			"p Invalid spec.dynamicASN: is mutually exclusive with spec.peerASN",
		}},
		{"dynamic AS number", one(func(s *spec) { s.PeerASN, s.DynamicASN = 0, "Any" }), []string{
			`p Invalid spec.dynamicASN: "Any" is neither External nor Internal`,
		}},
		{"TTL security", one(func(s *spec) { s.TTLSecurityHops, s.MultihopTTL = &most, &most }), []string{
			"p Invalid spec.ttlSecurityHops: 255 is not between 1 and 254",
			"p Invalid spec.ttlSecurityHops: is mutually exclusive with spec.multihopTTL",
		}},
		{"passive", one(func(s *spec) { s.Passive = true }), nil},
		{"passive with a port", one(func(s *spec) { s.Passive, s.PeerPort = true, 1790 }), []string{
			"p Invalid spec.peerPort: must be 179 for a passive peer: nodes do not connect to it",
		}},
		{"password of no Secret", one(func(s *spec) { s.PasswordSecretRef = &millracev1beta1.SecretReference{} }), []string{
			"p Invalid spec.passwordSecretRef.name: is required",
		}},
		{"source of the other family", one(func(s *spec) { s.SourceAddress = "2001:db8::2" }), []string{
			"p Invalid spec.sourceAddress: 2001:db8::2 does not have the family of spec.router.address, 198.51.100.1",
		}},
		{"two sources", one(func(s *spec) { s.SourceAddress, s.SourceInterface = "198.51.100.2", "lo" }), []string{
			"p Invalid spec.sourceAddress: is mutually exclusive with spec.sourceInterface",
		}},
		{"bad source", one(func(s *spec) { s.SourceAddress = "here" }), []string{`p Invalid spec.sourceAddress: "here" is not an IP address`}},
		{"IPv4 link-local", one(func(s *spec) { s.Router.Address = "169.254.255.1" }), nil},
		{"on the node itself", one(func(s *spec) { s.Router.Address = "127.0.0.1" }), nil},
		{"AS numbers", one(func(s *spec) { s.PeerASN, s.LocalASN = 0, 1<<32 }), []string{
			"p Invalid spec.peerASN: 0 is not between 1 and 4294967295",
			"p Invalid spec.localASN: 4294967296 is not between 1 and 4294967295",
		}},
		{"port", one(func(s *spec) { s.PeerPort = 65536 }), []string{"p Invalid spec.peerPort: 65536 is not between 1 and 65535"}},
		{"selector", one(func(s *spec) { s.NodeSelector = badSelector }), []string{"p Invalid spec.nodeSelector: "}},
		{"families", one(func(s *spec) { s.Families = []millracev1beta1.AddressFamily{"IPv4", "IPX"} }), []string{
			`p Invalid spec.families[1]: "IPX" is neither IPv4 nor IPv6`,
		}},
		{"hold time", one(func(s *spec) { s.HoldTime = seconds(2) }), []string{"p Invalid spec.holdTime: 2s is not between 3s and 18h12m15s"}},
		{"hold time with a fraction", one(func(s *spec) { s.HoldTime = &metav1.Duration{Duration: 3500 * time.Millisecond} }), []string{
			"p Invalid spec.holdTime: 3.5s must be whole seconds",
		}},
		{"shortest times", one(func(s *spec) { s.HoldTime, s.KeepaliveTime = seconds(3), seconds(1) }), nil},
		{"retry and multihop", one(func(s *spec) { s.ConnectRetryTime, s.MultihopTTL = seconds(601), &tooFar }), []string{
			"p Invalid spec.connectRetryTime: 10m1s is not between 1s and 10m0s", "p Invalid spec.multihopTTL: 256 is not between 1 and 255",
		}},
		{"keepalive against the default hold time", one(func(s *spec) { s.KeepaliveTime = seconds(31) }), []string{
			"p Invalid spec.keepaliveTime: 31s exceeds a third of holdTime, 1m30s",
		}},
		{"restart time", one(func(s *spec) { s.GracefulRestart = &millracev1beta1.GracefulRestart{RestartTime: seconds(4096)} }), []string{
			"p Invalid spec.gracefulRestart.restartTime: ",
		}},
		{"the older of two for the same router", peers{peerAged("a", 1, nil), peerAged("z", 0, nil)}, []string{
			`a Invalid spec.router.address: 198.51.100.1 port 179 belongs to the older LBPeer "z" for the same nodes`,
		}},
		{"an invalid one is in nobody's way", peers{peerAged("a", 0, func(s *spec) { s.PeerASN = 0 }), peerAged("b", 1, nil)}, []string{
			"a Invalid spec.peerASN: ",
		}},
		{"the same router from different nodes", peers{
			peerAged("a", 0, func(s *spec) { s.NodeSelector = rack("1") }), peerAged("b", 0, func(s *spec) { s.NodeSelector = rack("2") }),
		}, nil},
		{"the same router from some nodes and from all", peers{
			peerAged("a", 0, func(s *spec) { s.NodeSelector = rack("1") }), peerAged("b", 0, nil),
		}, []string{`b Invalid spec.router.address: `}},
		{"the same router on another port", peers{peerAged("a", 0, nil), peerAged("b", 0, func(s *spec) { s.PeerPort = 1179 })}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { checkProblems(t, Peers(test.objects), test.problems) })
	}
}

func TestParsePeer(t *testing.T) {
	no, hops := false, int32(3)
	fraction := &metav1.Duration{Duration: 2500 * time.Millisecond}
	type spec = millracev1beta1.LBPeerSpec
	tests := []struct {
		name   string
		change func(*spec)
		want   Session
	}{
		{"defaults", func(s *spec) { s.PeerPort = 0 }, Session{
			Address: netip.MustParseAddr("198.51.100.1"), Port: 179, HoldTime: 90 * time.Second, KeepaliveTime: 30 * time.Second,
			ConnectRetryTime: 3 * time.Second, IPv4: true, RestartTime: 120 * time.Second,
		}},
		{"everything", func(s *spec) {
			s.Router.Address, s.PeerPort, s.MultihopTTL = "2001:db8::1", 1179, &hops
			s.Families = []millracev1beta1.AddressFamily{"IPv4"}
			s.HoldTime, s.KeepaliveTime, s.ConnectRetryTime = seconds(10), fraction, fraction
			s.GracefulRestart = &millracev1beta1.GracefulRestart{RestartTime: seconds(4095)}
		}, Session{
			Address: netip.MustParseAddr("2001:db8::1"), Port: 1179, HoldTime: 10 * time.Second, KeepaliveTime: 2 * time.Second,
			ConnectRetryTime: 2 * time.Second, MultiHopTTL: 3, IPv4: true, RestartTime: 4095 * time.Second,
		}},
		{"security and source", func(s *spec) {
			s.TTLSecurityHops, s.SourceAddress = &hops, "198.51.100.2"
			s.PasswordSecretRef = &millracev1beta1.SecretReference{Name: "tor"}
		}, Session{
			Address: netip.MustParseAddr("198.51.100.1"), Port: 179, HoldTime: 90 * time.Second, KeepaliveTime: 30 * time.Second,
			ConnectRetryTime: 3 * time.Second, IPv4: true, RestartTime: 120 * time.Second,
			SecurityHops: 3, Source: netip.MustParseAddr("198.51.100.2"), PasswordSecret: "tor",
		}},
		{"link-local", func(s *spec) { s.Router.Address, s.Router.Interface, s.SourceInterface = "fe80::1", "eth0", "eth0" }, Session{
			Address: netip.MustParseAddr("fe80::1%eth0"), Port: 179, HoldTime: 90 * time.Second, KeepaliveTime: 30 * time.Second,
			ConnectRetryTime: 3 * time.Second, IPv6: true, RestartTime: 120 * time.Second, SourceInterface: "eth0",
		}},
		{"no graceful restart", func(s *spec) {
			s.HoldTime = seconds(4)
			s.GracefulRestart = &millracev1beta1.GracefulRestart{Enabled: &no, RestartTime: seconds(0)}
		}, Session{
			Address: netip.MustParseAddr("198.51.100.1"), Port: 179, HoldTime: 4 * time.Second, KeepaliveTime: time.Second,
			ConnectRetryTime: 3 * time.Second, IPv4: true,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.want.Name, test.want.ASN, test.want.LocalASN = "p", 64512, 64513
			object := peerAged("p", 0, test.change)
			peer, problems := ParsePeer(&object)
			if len(problems) > 0 || peer.Session != test.want {
				t.Errorf("ParsePeer = %+v, %v, want %+v", peer.Session, problems, test.want)
			}
		})
	}
	for dynamic, want := range map[millracev1beta1.DynamicASN]uint32{"External": 0, "Internal": 64513} {
		object := peerAged("p", 0, func(s *spec) { s.PeerASN, s.DynamicASN = 0, dynamic })
		if peer, problems := ParsePeer(&object); len(problems) > 0 || peer.ASN != want || peer.External() == (want != 0) {
			t.Errorf("dynamicASN %s: AS%d, %v, want AS%d", dynamic, peer.ASN, problems, want)
		}
	}
	object := peerAged("p", 0, func(s *spec) { s.PeerASN, s.NodeSelector = 0, rack("1") })
	peer, _ := ParsePeer(&object)
	if !peer.Nodes.Matches(labels.Set{"rack": "1"}) || peer.Nodes.Matches(labels.Set{"rack": "2"}) {
		t.Error("no nodes for an invalid peer")
	}
}
