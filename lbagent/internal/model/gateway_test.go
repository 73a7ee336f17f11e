// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// The router of an LBPeer is the node's gateway, or was found on an interface.
func TestRouterWithoutAddress(t *testing.T) {
	gateway := millracev1beta1.Router{Gateway: millracev1beta1.FamilyIPv6}
	onLink := millracev1beta1.Router{Interface: "eth1"}
	elsewhere := &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "other"}}
	for _, test := range []struct {
		name     string
		router   millracev1beta1.Router
		nodes    *metav1.LabelSelector
		gateways []string
		routers  map[string]netip.Addr
		want     string
		reason   string
		problem  string
	}{
		{"one gateway", gateway, nil, []string{"fe80::1%eth0"}, nil, "fe80::1%eth0", "", ""},
		{"no gateway configured", gateway, nil, nil, nil, "", ReasonNoGateway, "no IPv6 default route"},
		{"two gateways", gateway, nil, []string{"fe80::1%eth0", "fe80::1%eth1"}, nil, "", ReasonNoGateway, "fe80::1%eth1"},
		{"router on the interface", onLink, nil, nil, map[string]netip.Addr{"eth1": netip.MustParseAddr("fe80::2%eth1")}, "fe80::2%eth1", "", ""},
		{"no router on the interface", onLink, nil, nil, map[string]netip.Addr{"eth1": {}}, "", ReasonNoRouter, "no router has sent a router advertisement on eth1"},
		{"no interface", onLink, nil, nil, map[string]netip.Addr{}, "", ReasonNoRouter, "this node has no interface eth1"},
		{"other nodes", onLink, elsewhere, nil, nil, "", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &Snapshot{
				NodeName: testNode,
				Peers: []*millracev1beta1.LBPeer{{
					ObjectMeta: metav1.ObjectMeta{Name: "r"},
					Spec:       millracev1beta1.LBPeerSpec{Router: test.router, PeerASN: 64512, LocalASN: 64513, NodeSelector: test.nodes},
				}},
				Gateways: Gateways{
					millracev1beta1.FamilyIPv4: {netip.MustParseAddr("198.51.100.1")},
				},
				Routers: test.routers,
			}
			for _, gateway := range test.gateways {
				s.Gateways[millracev1beta1.FamilyIPv6] = append(s.Gateways[millracev1beta1.FamilyIPv6], netip.MustParseAddr(gateway))
			}
			m := Build(s)
			got := ""
			for i := range m.Peers {
				got = m.Peers[i].Address.String()
				if m.Peers[i].IPv4 || !m.Peers[i].IPv6 {
					t.Errorf("families: IPv4 %t, IPv6 %t, want that of the router", m.Peers[i].IPv4, m.Peers[i].IPv6)
				}
			}
			if got != test.want {
				t.Errorf("peer = %q, want %q", got, test.want)
			}
			message := ""
			for _, problem := range m.Problems {
				if problem.Reason == test.reason {
					message = problem.Message
				}
			}
			if (message == "") != (test.problem == "") || !strings.Contains(message, test.problem) {
				t.Errorf("problem = %q, want %q", message, test.problem)
			}
			var interfaces []string
			if test.router.Interface != "" && test.nodes == nil {
				interfaces = []string{test.router.Interface}
			}
			if got := RouterInterfaces(s); !slices.Equal(got, interfaces) {
				t.Errorf("router interfaces = %v, want %v", got, interfaces)
			}
		})
	}
}
