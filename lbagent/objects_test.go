// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const (
	thisNode  = "node1"
	otherNode = "node2"
)

func pointer[T any](value T) *T { return &value }

func cluster() *model.Snapshot {
	lbNode := func(name string, id int32, addresses ...string) *millracev1beta1.LBNode {
		return &millracev1beta1.LBNode{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Spec:       millracev1beta1.LBNodeSpec{ID: id, Addresses: addresses},
			Status:     millracev1beta1.LBNodeStatus{BootID: "b", ServingBootID: "b"},
		}
	}
	return &model.Snapshot{
		NodeName: thisNode,
		Node:     &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: thisNode}},
		LBNodes: []*millracev1beta1.LBNode{
			lbNode(thisNode, 1, "198.51.100.1", "2001:db8::1"), lbNode(otherNode, 2, "198.51.100.2", "2001:db8::2"),
		},
		Peers: []*millracev1beta1.LBPeer{{
			ObjectMeta: metav1.ObjectMeta{Name: "router"},
			Spec: millracev1beta1.LBPeerSpec{
				Router: millracev1beta1.Router{Address: "198.51.100.254"}, PeerASN: 64500, LocalASN: 64512, PeerPort: 179,
				Families: []millracev1beta1.AddressFamily{millracev1beta1.FamilyIPv4, millracev1beta1.FamilyIPv6},
			},
		}},
		Advertisements: []*millracev1beta1.VIPAdvertisement{{ObjectMeta: metav1.ObjectMeta{Name: "all"}}},
	}
}

func isIPv6(n int) bool { return n%3 == 0 }

func vipOf(n int) netip.Addr {
	if isIPv6(n) {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0xca, 0xfe, 14: byte(n >> 8), 15: byte(n)})
	}
	return netip.AddrFrom4([4]byte{203, byte(n >> 8), 113, byte(n)})
}

func podOf(n, third, i int) netip.Addr {
	if isIPv6(n) {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, byte(18 + third), 12: byte(n >> 8), 13: byte(n), 15: byte(i)})
	}
	return netip.AddrFrom4([4]byte{198, byte(18 + third + 2*(n>>8)), byte(n), byte(i)})
}

// addService adds the n-th Service, with a VIP and the given numbers of ready endpoints on the two nodes.
func addService(s *model.Snapshot, n int, local bool, here, there int) {
	name, family := fmt.Sprintf("service-%03d", n), corev1.IPv4Protocol
	if isIPv6(n) {
		family = corev1.IPv6Protocol
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.ServiceSpec{
			Type:              corev1.ServiceTypeLoadBalancer,
			LoadBalancerClass: pointer(millracev1beta1.Class),
			IPFamilies:        []corev1.IPFamily{family},
			Ports:             []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	if local {
		service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressType(family),
		Ports: []discoveryv1.EndpointPort{{
			Name: pointer("http"), Port: pointer(int32(8080)), Protocol: pointer(corev1.ProtocolTCP),
		}},
	}
	endpoints := func(node string, third, count int) {
		for i := range count {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{podOf(n, third, i+1).String()},
				NodeName:  pointer(node),
			})
		}
	}
	endpoints(thisNode, 0, here)
	endpoints(otherNode, 1, there)
	s.Services = append(s.Services, service)
	s.EndpointSlices = append(s.EndpointSlices, slice)
	s.VIPs = append(s.VIPs, &millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: millracev1beta1.VIPName(vipOf(n))},
		Spec: millracev1beta1.VIPSpec{
			Address: vipOf(n).String(),
			Claims:  []millracev1beta1.VIPClaim{{Namespace: "default", Name: name}},
		},
	})
}

func withPort(service *corev1.Service, name string, port int32) *corev1.Service {
	edited := service.DeepCopy()
	edited.Spec.Ports = append(edited.Spec.Ports, corev1.ServicePort{Name: name, Port: port})
	return edited
}

// restrict limits the n-th Service to the prefixes 198.51.third.0/24, or 2001:db8:third::/48 for IPv6.
func restrict(s *model.Snapshot, n int, thirds ...int) {
	for _, service := range s.Services {
		if service.Name != fmt.Sprintf("service-%03d", n) {
			continue
		}
		prefix := "198.51.%d.0/24"
		if isIPv6(n) {
			prefix = "2001:db8:%d::/48"
		}
		for _, third := range thirds {
			service.Spec.LoadBalancerSourceRanges = append(service.Spec.LoadBalancerSourceRanges, fmt.Sprintf(prefix, third))
		}
	}
}

// scatterNodes removes addresses of some nodes, assigns zones to some, and may remove the last node.
func scatterNodes(s *model.Snapshot, random *rand.Rand) {
	for _, node := range s.LBNodes {
		switch random.IntN(4) {
		case 0:
			node.Spec.Addresses = node.Spec.Addresses[:1]
		case 1:
			node.Spec.Addresses = node.Spec.Addresses[1:]
		}
		if random.IntN(3) > 0 {
			node.Spec.Zone = fmt.Sprint(random.IntN(3))
		}
	}
	if random.IntN(5) == 0 {
		s.LBNodes = s.LBNodes[:len(s.LBNodes)-1]
	}
}

// scatterEndpoints gives endpoints hints and makes some unready.
func scatterEndpoints(s *model.Snapshot, random *rand.Rand) {
	for _, service := range s.Services {
		if random.IntN(2) == 0 {
			service.Spec.TrafficDistribution = pointer(corev1.ServiceTrafficDistributionPreferClose)
		}
	}
	for _, slice := range s.EndpointSlices {
		for i := range slice.Endpoints {
			endpoint := &slice.Endpoints[i]
			endpoint.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: fmt.Sprint(random.IntN(3))}}}
			if random.IntN(4) == 0 {
				endpoint.Conditions.Ready = pointer(false)
			}
		}
	}
}
