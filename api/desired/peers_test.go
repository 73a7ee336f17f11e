// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func peerAged(name string, age int, change func(*millracev1beta1.LBPeerSpec)) millracev1beta1.LBPeer {
	peer := millracev1beta1.LBPeer{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(epoch.Add(time.Duration(age) * time.Second))},
		Spec:       millracev1beta1.LBPeerSpec{PeerAddress: "198.51.100.1", PeerASN: 64512, LocalASN: 64513, PeerPort: 179},
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
		{"no address", one(func(s *spec) { s.PeerAddress = "" }), []string{`p Invalid spec.router.address: "" is not an IP address`}},
		{"multicast", one(func(s *spec) { s.PeerAddress = "ff02::1" }), []string{"p Invalid spec.peerAddress: ff02::1 is multicast (ff00::/8), not the address of a router"}},
		{"unspecified", one(func(s *spec) { s.PeerAddress = "0.0.0.0" }), []string{"p Invalid spec.peerAddress: 0.0.0.0 is unspecified"}},
		{"zone", one(func(s *spec) { s.PeerAddress = "fe80::1%eth0" }), []string{`p Invalid spec.peerAddress: "fe80::1%eth0" has a zone`}},
		{"IPv6 link-local", one(func(s *spec) { s.PeerAddress = "fe80::1" }), []string{
			"p Invalid spec.peerInterface: is missing: fe80::1 is link-local",
		}},
		{"IPv6 link-local with an interface", one(func(s *spec) { s.PeerAddress, s.PeerInterface = "fe80::1", "eth0" }), nil},
		{"interface of a global address", one(func(s *spec) { s.PeerInterface = "eth0" }), []string{
			"p Invalid spec.peerInterface: is for IPv6 link-local addresses",
		}},
		{"the gateway", one(func(s *spec) { s.PeerAddress, s.PeerGateway = "", "IPv6" }), nil},
		{"the gateway of no family", one(func(s *spec) { s.PeerAddress, s.PeerGateway = "", "any" }), []string{
			`p Invalid spec.peerGateway: "any" is neither IPv4 nor IPv6`,
		}},
		{"IPv6 next hops", one(func(s *spec) {
			s.PeerAddress, s.ExtendedNextHop, s.Families = "2001:db8::1", true, []millracev1beta1.AddressFamily{"IPv4"}
		}), nil},
		{"IPv6 next hops without IPv4 routes", one(func(s *spec) { s.PeerAddress, s.ExtendedNextHop = "2001:db8::1", true }), []string{
			"p Invalid spec.extendedNextHop: is about IPv4 routes",
		}},
		{"IPv6 next hops over IPv4", one(func(s *spec) { s.ExtendedNextHop = true }), []string{"p Invalid spec.extendedNextHop: is for IPv6 sessions"}},
		{"IPv6 next hops to the IPv4 gateway", one(func(s *spec) { s.PeerAddress, s.PeerGateway, s.ExtendedNextHop = "", "IPv4", true }), []string{
			"p Invalid spec.extendedNextHop: is for IPv6 sessions",
		}},
		{"a range", one(func(s *spec) { s.PeerAddress, s.PeerRange = "", "198.51.100.0/28" }), nil},
		{"a range that is none", one(func(s *spec) { s.PeerAddress, s.PeerRange = "", "198.51.100.1" }), []string{
			`p Invalid spec.peerRange: "198.51.100.1" is not a prefix`,
		}},
		{"a link-local range", one(func(s *spec) { s.PeerAddress, s.PeerRange = "", "fe80::/64" }), []string{
			"p Invalid spec.peerRange: fe80::/64 is link-local (fe80::/10), not a network of routers",
		}},
		{"a range beside an address", one(func(s *spec) { s.PeerRange = "198.51.100.0/28" }), []string{
			"p Invalid spec.peerRange: and spec.peerAddress exclude each other",
		}},
		{"a range with a source", one(func(s *spec) { s.PeerAddress, s.PeerRange, s.SourceInterface = "", "198.51.100.0/28", "eth0" }), []string{
			"p Invalid spec.peerRange: excludes",
		}},
		{"too many routers", one(func(s *spec) { s.PeerAddress, s.PeerRange, s.MaxPeers = "", "198.51.100.0/28", &most }), []string{
			"p Invalid spec.maxPeers: 255 is not between 1 and 64",
		}},
		{"a number of routers without a range", one(func(s *spec) { s.MaxPeers = &most }), []string{"p Invalid spec.maxPeers: is for a range of routers"}},
		{"ranges with common routers", peers{
			peerAged("p", 1, func(s *spec) { s.PeerAddress, s.PeerRange = "", "198.51.100.0/24" }),
			peerAged("q", 0, func(s *spec) { s.PeerAddress, s.PeerRange = "", "198.51.100.0/28" }),
		}, []string{`p Invalid spec.peerRange: 198.51.100.0/24 or a part of it on port 179 has the older LBPeer`}},
		{"ranges without", peers{
			peerAged("p", 1, func(s *spec) { s.PeerAddress, s.PeerRange = "", "198.51.100.0/28" }),
			peerAged("q", 0, func(s *spec) { s.PeerAddress, s.PeerRange = "", "198.51.100.16/28" }),
			peerAged("r", 2, nil),
		}, nil},
		{"gateway and address", one(func(s *spec) { s.PeerGateway = "IPv4" }), []string{"p Invalid spec.peerGateway: and spec.peerAddress exclude each other"}},
		{"gateway and interface", one(func(s *spec) { s.PeerAddress, s.PeerGateway, s.PeerInterface = "", "IPv6", "eth0" }), []string{
			"p Invalid spec.peerInterface: is for an IPv6 link-local address",
		}},
		{"source of another family than the gateway", one(func(s *spec) { s.PeerAddress, s.PeerGateway, s.SourceAddress = "", "IPv4", "2001:db8::2" }), []string{
			"p Invalid spec.sourceAddress: 2001:db8::2 is not of the family of spec.peerGateway, IPv4",
		}},
		{"the gateway twice", peers{
			peerAged("p", 1, func(s *spec) { s.PeerAddress, s.PeerGateway = "", "IPv4" }),
			peerAged("q", 0, func(s *spec) { s.PeerAddress, s.PeerGateway = "", "IPv4" }),
		}, []string{`p Invalid spec.peerGateway: the IPv4 gateway port 179 has the older LBPeer`}},
		{"both kinds of AS number", one(func(s *spec) { s.DynamicASN = "External" }), []string{
			"p Invalid spec.dynamicASN: and peerASN exclude each other",
		}},
		{"dynamic AS number", one(func(s *spec) { s.PeerASN, s.DynamicASN = 0, "Any" }), []string{
			`p Invalid spec.dynamicASN: "Any" is neither External nor Internal`,
		}},
		{"TTL security", one(func(s *spec) { s.TTLSecurityHops, s.EBGPMultiHop = &most, &most }), []string{
			"p Invalid spec.ttlSecurityHops: 255 is not between 1 and 254",
			"p Invalid spec.ttlSecurityHops: and spec.ebgpMultiHop exclude each other",
		}},
		{"passive", one(func(s *spec) { s.Passive = true }), nil},
		{"passive with a port", one(func(s *spec) { s.Passive, s.PeerPort = true, 1790 }), []string{
			"p Invalid spec.peerPort: is where nodes connect to; of a passive peer they do not",
		}},
		{"password of no Secret", one(func(s *spec) { s.PasswordSecretRef = &millracev1beta1.SecretReference{} }), []string{
			"p Invalid spec.passwordSecretRef.name: is empty",
		}},
		{"source of the other family", one(func(s *spec) { s.SourceAddress = "2001:db8::2" }), []string{
			"p Invalid spec.sourceAddress: 2001:db8::2 is not of the family of spec.peerAddress, 198.51.100.1",
		}},
		{"two sources", one(func(s *spec) { s.SourceAddress, s.SourceInterface = "198.51.100.2", "lo" }), []string{
			"p Invalid spec.sourceAddress: and sourceInterface exclude each other",
		}},
		{"bad source", one(func(s *spec) { s.SourceAddress = "here" }), []string{`p Invalid spec.sourceAddress: "here" is not an IP address`}},
		{"IPv4 link-local", one(func(s *spec) { s.PeerAddress = "169.254.255.1" }), nil},
		{"on the node itself", one(func(s *spec) { s.PeerAddress = "127.0.0.1" }), nil},
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
			"p Invalid spec.holdTime: 3.5s is not in whole seconds",
		}},
		{"shortest times", one(func(s *spec) { s.HoldTime, s.KeepaliveTime = seconds(3), seconds(1) }), nil},
		{"retry and multihop", one(func(s *spec) { s.ConnectRetryTime, s.EBGPMultiHop = seconds(601), &tooFar }), []string{
			"p Invalid spec.connectRetryTime: 10m1s is not between 1s and 10m0s", "p Invalid spec.ebgpMultiHop: 256 is not between 1 and 255",
		}},
		{"keepalive against the default hold time", one(func(s *spec) { s.KeepaliveTime = seconds(31) }), []string{
			"p Invalid spec.keepaliveTime: 31s is more than a third of holdTime, 1m30s",
		}},
		{"restart time", one(func(s *spec) { s.GracefulRestart = &millracev1beta1.GracefulRestart{RestartTime: seconds(4096)} }), []string{
			"p Invalid spec.gracefulRestart.restartTime: ",
		}},
		{"the older of two for the same router", peers{peerAged("a", 1, nil), peerAged("z", 0, nil)}, []string{
			`a Invalid spec.peerAddress: 198.51.100.1 port 179 has the older LBPeer "z" for the same nodes`,
		}},
		{"an invalid one is in nobody's way", peers{peerAged("a", 0, func(s *spec) { s.PeerASN = 0 }), peerAged("b", 1, nil)}, []string{
			"a Invalid spec.peerASN: ",
		}},
		{"the same router from different nodes", peers{
			peerAged("a", 0, func(s *spec) { s.NodeSelector = rack("1") }), peerAged("b", 0, func(s *spec) { s.NodeSelector = rack("2") }),
		}, nil},
		{"the same router from some nodes and from all", peers{
			peerAged("a", 0, func(s *spec) { s.NodeSelector = rack("1") }), peerAged("b", 0, nil),
		}, []string{`b Invalid spec.peerAddress: `}},
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
			s.PeerAddress, s.PeerPort, s.EBGPMultiHop = "2001:db8::1", 1179, &hops
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
		{"link-local", func(s *spec) { s.PeerAddress, s.PeerInterface, s.SourceInterface = "fe80::1", "eth0", "eth0" }, Session{
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
		t.Error("the nodes of an invalid peer are not known")
	}
}

// An LBPeer means the same by the previous names of its fields and by those of now. Both at once
// may not contradict each other, whatever schema let them in.
func TestPreviousNames(t *testing.T) {
	type spec = millracev1beta1.LBPeerSpec
	four, ttl, other := int32(4), int32(3), int32(5)
	renamed := func(previous spec) spec {
		now := previous
		now.Router = &millracev1beta1.Router{
			Address: previous.PeerAddress, Interface: previous.PeerInterface, Gateway: previous.PeerGateway,
			Range: previous.PeerRange, MaxPeers: previous.MaxPeers,
		}
		now.PeerAddress, now.PeerInterface, now.PeerGateway, now.PeerRange, now.MaxPeers = "", "", "", "", nil
		now.MultihopTTL, now.EBGPMultiHop = previous.EBGPMultiHop, nil
		return now
	}
	for name, change := range map[string]func(*spec){
		"an address":         nil,
		"a distant router":   func(s *spec) { s.EBGPMultiHop, s.BFD = &ttl, &millracev1beta1.BFD{MinimumTTL: &ttl} },
		"a link-local one":   func(s *spec) { s.PeerAddress, s.PeerInterface = "fe80::1", "eth0" },
		"the gateway":        func(s *spec) { s.PeerAddress, s.PeerGateway = "", "IPv6" },
		"a range":            func(s *spec) { s.PeerAddress, s.PeerRange, s.MaxPeers = "", "198.51.100.0/28", &four },
		"TTLs that exclude":  func(s *spec) { s.EBGPMultiHop, s.TTLSecurityHops = &ttl, &ttl },
		"a range and source": func(s *spec) { s.PeerAddress, s.PeerRange, s.SourceAddress = "", "198.51.100.0/28", "198.51.100.1" },
	} {
		t.Run(name, func(t *testing.T) {
			previous := peerAged("p", 0, change)
			now, both := previous, previous
			now.Spec = renamed(previous.Spec)
			both.Spec.Router, both.Spec.MultihopTTL = now.Spec.Router, now.Spec.MultihopTTL
			want, problems := ParsePeer(&previous)
			for _, object := range []*millracev1beta1.LBPeer{&now, &both} {
				got, found := ParsePeer(object)
				got.Fields, got.Nodes = want.Fields, want.Nodes
				if !reflect.DeepEqual(got, want) || len(found) != len(problems) {
					t.Errorf("ParsePeer = %+v, %v, by the previous names %+v, %v", got, found, want, problems)
				}
			}
			if got, want := OccupiedByPeer(&now), OccupiedByPeer(&previous); !slices.Equal(got, want) {
				t.Errorf("occupied is %v, by the previous names %v", got, want)
			}
		})
	}
	differ := peerAged("p", 0, func(s *spec) { s.EBGPMultiHop, s.MultihopTTL = &other, &ttl })
	differ.Spec.Router = &millracev1beta1.Router{Address: "198.51.100.2"}
	_, problems := ParsePeer(&differ)
	checkProblems(t, problems, []string{
		"p Invalid spec.router: and its previous names", "p Invalid spec.multihopTTL: and its previous name ebgpMultiHop differ",
	})
}
