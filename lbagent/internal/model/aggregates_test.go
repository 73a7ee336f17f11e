// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestBuildAggregates(t *testing.T) {
	length := int32(28)
	for _, test := range []struct {
		name   string
		onLink []string
		edit   func(*Snapshot)
		want   []string
		// problem is a substring of the only Problem.
		problem string
	}{
		{name: "one", want: []string{"203.0.113.0/28"}},
		{name: "other network", onLink: []string{"198.51.100.0/24"}, want: []string{"203.0.113.0/28"}},
		{name: "VIP on an interface", onLink: []string{"203.0.113.1/32"}, want: []string{"203.0.113.0/28"}},
		{name: "address of the node", onLink: []string{"203.0.113.9/32"}, problem: "(203.0.113.9-203.0.113.9)"},
		{name: "network of the node", onLink: []string{"203.0.113.0/24"}, problem: "a network of the node's own interfaces"},
		{name: "router address", edit: func(s *Snapshot) { s.Peers[0].Spec.Router.Address = "203.0.113.14" }, problem: `LBPeer "r"`},
		{name: "pods", edit: func(s *Snapshot) {
			s.LBNodes = append(s.LBNodes, &millracev1beta1.LBNode{
				ObjectMeta: metav1.ObjectMeta{Name: "node2"},
				Spec:       millracev1beta1.LBNodeSpec{ID: 2, Addresses: []string{"198.51.100.2"}, PodCIDRs: []string{"203.0.113.8/30"}},
			})
		}, problem: `LBNode "node2"`},
		{name: "cluster IP", edit: func(s *Snapshot) {
			for i, ip := range []string{"203.0.113.12", "203.0.113.11", "203.0.113.16", "None", ""} {
				s.Services = append(s.Services, &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("internal%d", i)},
					Spec:       corev1.ServiceSpec{ClusterIPs: []string{ip}},
				})
			}
		}, problem: "the cluster IP of Service default/internal1 (203.0.113.11-203.0.113.11)"},
		{name: "cluster IPs outside", edit: func(s *Snapshot) {
			s.Services[0].Spec.ClusterIPs = []string{"203.0.113.16", "2001:db8::1"}
		}, want: []string{"203.0.113.0/28"}},
		{name: "no Service", edit: func(s *Snapshot) { s.Services = nil }},
		{name: "no peer", edit: func(s *Snapshot) { s.Peers = nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := localService(&length)
			for _, text := range test.onLink {
				s.OnLink = append(s.OnLink, Network{Prefix: netip.MustParsePrefix(text)})
			}
			if test.edit != nil {
				test.edit(s)
			}
			m := Build(s)
			var got []string
			for _, aggregate := range m.Aggregates {
				got = append(got, aggregate.Prefix.String())
			}
			if strings.Join(got, " ") != strings.Join(test.want, " ") {
				t.Errorf("aggregates = %v, want %v", got, test.want)
			}
			message := ""
			for _, problem := range m.Problems {
				if problem.Reason == ReasonNotAggregated {
					message += problem.Message
				}
			}
			if (test.problem == "") != (message == "") || !strings.Contains(message, test.problem) {
				t.Errorf("problem = %q, want %q", message, test.problem)
			}
			for i := range m.Frontends {
				if !m.Frontends[i].Shared {
					t.Error("the Local frontend of an aggregate is not shared with nodes that have endpoints")
				}
			}
		})
	}
}

// localService is a Service with a VIP and an aggregating advertisement.
func localService(length *int32) *Snapshot {
	return &Snapshot{
		NodeName: testNode,
		VIPs: []*millracev1beta1.VIP{{
			ObjectMeta: metav1.ObjectMeta{Name: "203.0.113.1"},
			Spec: millracev1beta1.VIPSpec{Address: "203.0.113.1", Pool: "p", Claims: []millracev1beta1.VIPClaim{
				{Namespace: "default", Name: "web", UID: "web"},
			}},
		}},
		Services: []*corev1.Service{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web"},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
				Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
			},
		}},
		Peers: []*millracev1beta1.LBPeer{{
			ObjectMeta: metav1.ObjectMeta{Name: "r"},
			Spec:       millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Address: "198.51.100.254"}, PeerASN: 64512, LocalASN: 64513},
		}},
		Advertisements: []*millracev1beta1.VIPAdvertisement{{
			ObjectMeta: metav1.ObjectMeta{Name: "all"},
			Spec:       millracev1beta1.VIPAdvertisementSpec{AggregationLength: length},
		}},
	}
}

func TestBuilderSeesOtherKinds(t *testing.T) {
	length := int32(24)
	s := localService(&length)
	var builder Builder
	first, _ := builder.Build(s)
	if !first.Frontends[0].Shared {
		t.Fatal("the Local frontend of an aggregate is not shared")
	}

	alone := *s
	alone.Advertisements = localService(nil).Advertisements
	next, changes := builder.Build(&alone)
	if next.Frontends[0].Shared || changes == nil || len(changes.VIPs) != 1 {
		t.Errorf("after the aggregate was removed: shared %t, changes %+v", next.Frontends[0].Shared, changes)
	}
	if !first.Frontends[0].Shared {
		t.Error("the previous model was modified")
	}

	pooled := alone
	pooled.Pools = []*millracev1beta1.VIPPool{{
		ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: millracev1beta1.VIPPoolSpec{Addresses: []string{"203.0.113.0/24"}},
		Status: millracev1beta1.VIPPoolStatus{Usable: []string{"203.0.113.0-203.0.113.255"}},
	}}
	if next, changes = builder.Build(&pooled); len(next.Pools) == 0 || len(changes.VIPs) != 0 {
		t.Errorf("new pools %v, changes %+v", next.Pools, changes)
	}
}
