// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestPeerGateway(t *testing.T) {
	for _, test := range []struct {
		name     string
		gateways []string
		want     string
		problem  string
	}{
		{"one", []string{"fe80::1%eth0"}, "fe80::1%eth0", ""},
		{"none", nil, "", "no IPv6 default route"},
		{"two", []string{"fe80::1%eth0", "fe80::1%eth1"}, "", "fe80::1%eth1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &Snapshot{
				NodeName: testNode,
				Peers: []*millracev1beta1.LBPeer{{
					ObjectMeta: metav1.ObjectMeta{Name: "r"},
					Spec:       millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Gateway: millracev1beta1.FamilyIPv6}, PeerASN: 64512, LocalASN: 64513},
				}},
				Gateways: Gateways{
					millracev1beta1.FamilyIPv4: {netip.MustParseAddr("198.51.100.1")},
				},
			}
			for _, gateway := range test.gateways {
				s.Gateways[millracev1beta1.FamilyIPv6] = append(s.Gateways[millracev1beta1.FamilyIPv6], netip.MustParseAddr(gateway))
			}
			m := Build(s)
			got := ""
			for i := range m.Peers {
				got = m.Peers[i].Address.String()
				if m.Peers[i].IPv4 || !m.Peers[i].IPv6 {
					t.Errorf("families are IPv4 %t and IPv6 %t, want that of the gateway", m.Peers[i].IPv4, m.Peers[i].IPv6)
				}
			}
			if got != test.want {
				t.Errorf("the peer is %q, want %q", got, test.want)
			}
			message := ""
			for _, problem := range m.Problems {
				if problem.Reason == ReasonNoGateway {
					message = problem.Message
				}
			}
			if (message == "") != (test.problem == "") || !strings.Contains(message, test.problem) {
				t.Errorf("problem %q, want %q", message, test.problem)
			}
		})
	}
}
