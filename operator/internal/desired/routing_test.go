// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

func peerAged(name string, age int, change func(*millracev1alpha1.BGPPeerSpec)) millracev1alpha1.BGPPeer {
	peer := millracev1alpha1.BGPPeer{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(epoch.Add(time.Duration(age) * time.Second))},
		Spec:       millracev1alpha1.BGPPeerSpec{PeerAddress: "198.51.100.1", PeerASN: 64512, LocalASN: 64513, PeerPort: 179},
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
	type spec = millracev1alpha1.BGPPeerSpec
	type peers = []millracev1alpha1.BGPPeer
	one := func(change func(*spec)) peers { return peers{peerAged("p", 0, change)} }
	tests := []struct {
		name     string
		objects  peers
		problems []string
	}{
		{"valid", one(nil), nil},
		{"no address", one(func(s *spec) { s.PeerAddress = "" }), []string{`p Invalid spec.peerAddress: "" is not an IP address`}},
		{"multicast", one(func(s *spec) { s.PeerAddress = "ff02::1" }), []string{"p Invalid spec.peerAddress: ff02::1 is not the address of a router"}},
		{"AS numbers", one(func(s *spec) { s.PeerASN, s.LocalASN = 0, 1<<32 }), []string{
			"p Invalid spec.peerASN: 0 is not an autonomous system number",
			"p Invalid spec.localASN: 4294967296 is not an autonomous system number",
		}},
		{"port", one(func(s *spec) { s.PeerPort = 65536 }), []string{"p Invalid spec.peerPort: 65536 is not a TCP port"}},
		{"selector", one(func(s *spec) { s.NodeSelector = badSelector }), []string{"p Invalid spec.nodeSelector: "}},
		{"families", one(func(s *spec) { s.Families = []millracev1alpha1.AddressFamily{"IPv4", "IPX"} }), []string{
			`p Invalid spec.families[1]: "IPX" is neither IPv4 nor IPv6`,
		}},
		{"hold time", one(func(s *spec) { s.HoldTime = seconds(2) }), []string{"p Invalid spec.holdTime: 2s must be whole seconds from 3s to 65535s"}},
		{"hold time with a fraction", one(func(s *spec) { s.HoldTime = &metav1.Duration{Duration: 3500 * time.Millisecond} }), []string{
			"p Invalid spec.holdTime: 3.5s must be whole seconds",
		}},
		{"shortest times", one(func(s *spec) { s.HoldTime, s.KeepaliveTime = seconds(3), seconds(1) }), nil},
		{"keepalive against the default hold time", one(func(s *spec) { s.KeepaliveTime = seconds(31) }), []string{
			"p Invalid spec.keepaliveTime: 31s must be at least 1s and at most a third of holdTime (1m30s)",
		}},
		{"restart time", one(func(s *spec) { s.GracefulRestart = &millracev1alpha1.GracefulRestart{RestartTime: seconds(4096)} }), []string{
			"p Invalid spec.gracefulRestart.restartTime: ",
		}},
		{"the older of two for the same router", peers{peerAged("a", 1, nil), peerAged("z", 0, nil)}, []string{
			`a Invalid spec.peerAddress: 198.51.100.1 port 179 has the older BGPPeer "z" for the same nodes`,
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

func TestAdvertisements(t *testing.T) {
	type spec = millracev1alpha1.BGPAdvertisementSpec
	tooHigh := int64(1 << 32)
	tests := []struct {
		name     string
		spec     spec
		problems []string
	}{
		{"everything", spec{}, nil},
		{"valid", spec{Pools: []string{"pool"}, Peers: []string{"peer"}, Communities: []string{"64512:100", "0:65535", "4200000000:1:4294967295"}}, nil},
		{"references", spec{Pools: []string{"pool", "none"}, Peers: []string{"nobody"}}, []string{
			`adv Invalid spec.pools[1]: IPPool "none" does not exist`,
			`adv Invalid spec.peers[0]: BGPPeer "nobody" does not exist`,
		}},
		{"selectors", spec{ServiceSelector: badSelector, NodeSelector: badSelector}, []string{
			"adv Invalid spec.serviceSelector: ", "adv Invalid spec.nodeSelector: ",
		}},
		{"communities", spec{Communities: []string{"65536:1", "1:2:4294967296", "1", "1:2:3:4", "a:b", "-1:1"}}, []string{
			`adv Invalid spec.communities[0]: "65536:1": "65536" must be a number from 0 to 65535`,
			`adv Invalid spec.communities[1]: "1:2:4294967296": "4294967296" must be a number from 0 to 4294967295`,
			`adv Invalid spec.communities[2]: "1" is neither`,
			`adv Invalid spec.communities[3]: "1:2:3:4" is neither`,
			`adv Invalid spec.communities[4]: "a:b": "a" must be`,
			`adv Invalid spec.communities[5]: "-1:1": "-1" must be`,
		}},
		{"local preference", spec{LocalPreference: &tooHigh}, []string{"adv Invalid spec.localPreference: 4294967296 must be"}},
	}
	pools := []millracev1alpha1.IPPool{poolAged("pool", 0)}
	peers := []millracev1alpha1.BGPPeer{peerAged("peer", 0, nil)}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			object := millracev1alpha1.BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "adv"}, Spec: test.spec}
			checkProblems(t, Advertisements([]millracev1alpha1.BGPAdvertisement{object}, pools, peers), test.problems)
		})
	}
}
