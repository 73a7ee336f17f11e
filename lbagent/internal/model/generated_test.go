// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// genOtherNode changes a node: it fails, boots, moves to another zone, leaves or joins.
func genOtherNode(t *rapid.T, s *Snapshot) {
	if len(s.LBNodes) == 0 || rapid.IntRange(0, 7).Draw(t, "joins") == 0 {
		id := rapid.Int32Range(2, 9).Draw(t, "id")
		s.LBNodes = append(s.LBNodes, &millracev1beta1.LBNode{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", id)},
			Spec:       millracev1beta1.LBNodeSpec{ID: id, Addresses: []string{fmt.Sprintf("198.51.100.%d", id)}},
		})
		return
	}
	at := rapid.IntRange(0, len(s.LBNodes)-1).Draw(t, "node")
	node := s.LBNodes[at].DeepCopy()
	s.LBNodes[at] = node
	switch rapid.IntRange(0, 5).Draw(t, "what") {
	case 0:
		s.LBNodes = slices.Delete(s.LBNodes, at, at+1)
	case 1:
		node.Spec.Zone = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "zone")
	case 2:
		node.Status.BootID, node.Status.ServingBootID = "a", rapid.SampledFrom([]string{"a", "b"}).Draw(t, "served")
	default:
		if s.Down == nil {
			s.Down = map[forwarding.NodeID]bool{}
		}
		s.Down[forwarding.NodeID(node.Spec.ID)] = !s.Down[forwarding.NodeID(node.Spec.ID)]
	}
}

// pick draws one of a few values, so that objects conflict.
func pick[T any](t *rapid.T, label string, values ...T) T {
	return rapid.SampledFrom(values).Draw(t, label)
}

func genMeta(t *rapid.T, namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		UID:               types.UID(pick(t, "uid", "a", "b")),
		CreationTimestamp: metav1.Unix(int64(rapid.IntRange(0, 2).Draw(t, "created")), 0),
		Labels:            map[string]string{"tier": pick(t, "tier", "front", "back")},
	}
}

func genSnapshot(t *rapid.T) *Snapshot {
	s := &Snapshot{NodeName: testNode}
	if rapid.Bool().Draw(t, "seen") {
		s.Node = &corev1.Node{ObjectMeta: genMeta(t, "", testNode)}
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "nodes") {
		s.LBNodes = append(s.LBNodes, genLBNode(t, fmt.Sprintf("node%d", i+1)))
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "services") {
		s.Services = append(s.Services, genService(t, fmt.Sprintf("service%d", i)))
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "slices") {
		s.EndpointSlices = append(s.EndpointSlices, genSlice(t, fmt.Sprintf("slice%d", i)))
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "vips") {
		s.VIPs = append(s.VIPs, genVIP(t, i))
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "routes") {
		s.Routes = append(s.Routes, genRoute(t, fmt.Sprintf("route%d", i)))
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "peers") {
		s.Peers = append(s.Peers, genPeer(t, fmt.Sprintf("peer%d", i)))
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "advertisements") {
		s.Advertisements = append(s.Advertisements, genAdvertisement(t, fmt.Sprintf("advertisement%d", i)))
	}
	return s
}

func genLBNode(t *rapid.T, name string) *millracev1beta1.LBNode {
	node := &millracev1beta1.LBNode{ObjectMeta: genMeta(t, "", name)}
	node.Spec.ID = pick(t, "id", int32(1), 2, 3, 4, 5, 4095, 4096, 0, -1)
	node.Spec.Zone = pick(t, "zone", "", "a", "b", "c")
	node.Spec.PodCIDRs = rapid.SliceOfN(rapid.SampledFrom([]string{
		"198.18.0.0/31", "198.18.0.2/31", "198.18.0.0/24", "2001:db8:18::/64", "x",
	}), 0, 2).Draw(t, "pod networks")
	node.Spec.Addresses = rapid.SliceOfN(rapid.SampledFrom([]string{
		"198.51.100.1", "198.51.100.2", "198.51.100.3", "2001:db8::1", "2001:db8::2", "::ffff:198.51.100.1", "::1", "x", "",
	}), 0, 3).Draw(t, "addresses")
	node.Status.BootID = pick(t, "boot", "b", "b", "b", "")
	node.Status.ServingBootID = pick(t, "serving boot", "b", "b", "a", "")
	return node
}

func genService(t *rapid.T, name string) *corev1.Service {
	service := &corev1.Service{ObjectMeta: genMeta(t, "default", name)}
	service.Spec.Type = pick(t, "type", corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeClusterIP, "")
	service.Spec.LoadBalancerClass = genPointer(t, "class", millracev1beta1.Class, millracev1beta1.Class, "example.com/lb", "")
	service.Spec.ExternalTrafficPolicy = pick(t, "policy",
		corev1.ServiceExternalTrafficPolicyLocal, corev1.ServiceExternalTrafficPolicyCluster, "")
	ranges := rapid.SliceOfN(rapid.SampledFrom([]string{
		"198.51.100.0/24", " 198.51.100.7/25", "0.0.0.0/0", "2001:db8::/32", "2001:db8:1::1/48", "::/0", "::ffff:198.51.0.0/112", "::/80", "x", "",
	}), 0, 4)
	if rapid.Bool().Draw(t, "annotated") {
		service.Annotations = map[string]string{
			corev1.AnnotationLoadBalancerSourceRangesKey: strings.Join(ranges.Draw(t, "annotation"), ","),
		}
	} else {
		service.Spec.LoadBalancerSourceRanges = ranges.Draw(t, "ranges")
	}
	service.Spec.SessionAffinity = pick(t, "affinity", corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP, "")
	service.Spec.SessionAffinityConfig = genPointer(t, "affinity config", corev1.SessionAffinityConfig{}, corev1.SessionAffinityConfig{
		ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: genPointer(t, "timeout", int32(30), 0, -1, 86401)},
	})
	service.Spec.TrafficDistribution = genPointer(t, "distribution", corev1.ServiceTrafficDistributionPreferSameZone, "")
	for range rapid.IntRange(0, 3).Draw(t, "ports") {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name:     pick(t, "port name", "http", "dns", ""),
			Port:     pick(t, "port", int32(80), 53, 0, -1, 65535, 65536),
			Protocol: pick(t, "protocol", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP, ""),
		})
	}
	return service
}

func genPointer[T any](t *rapid.T, label string, values ...T) *T {
	if rapid.Bool().Draw(t, label+" absent") {
		return nil
	}
	value := pick(t, label, values...)
	return &value
}

func genSlice(t *rapid.T, name string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: genMeta(t, "default", name)}
	slice.Labels[discoveryv1.LabelServiceName] = pick(t, "service", "service0", "service1", "service2", "")
	slice.AddressType = pick(t, "address type", discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN, "")
	for range rapid.IntRange(0, 3).Draw(t, "ports") {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{
			Name:     genPointer(t, "port name", "http", "dns", ""),
			Port:     genPointer(t, "port", int32(8080), 80, 0, -1, 65536),
			Protocol: genPointer(t, "protocol", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP),
		})
	}
	for range rapid.IntRange(0, 5).Draw(t, "endpoints") {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: rapid.SliceOfN(rapid.SampledFrom([]string{
				"198.18.0.1", "198.18.0.2", "198.18.0.3", "2001:db8:18::1", "2001:db8:18::2", "127.0.0.1", "fe80::1%eth0", "x",
			}), 0, 2).Draw(t, "addresses"),
			NodeName: genPointer(t, "node", testNode, "node2", "node9", ""),
			Conditions: discoveryv1.EndpointConditions{
				Ready:       genPointer(t, "ready", true, false),
				Serving:     genPointer(t, "serving", true, false),
				Terminating: genPointer(t, "terminating", true, false),
			},
			Hints: genPointer(t, "hints", discoveryv1.EndpointHints{},
				discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}},
				discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "b"}, {Name: "x"}}},
				discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: "node2"}, {Name: "node9"}}}),
		})
	}
	return slice
}

func genVIP(t *rapid.T, i int) *millracev1beta1.VIP {
	address := pick(t, "address", fmt.Sprintf("203.0.113.%d", i), fmt.Sprintf("2001:db8:1::%d", i), fmt.Sprintf("::ffff:203.0.113.%d", i), "x")
	name := address
	if parsed, err := netip.ParseAddr(address); err == nil {
		name = millracev1beta1.VIPName(parsed)
	}
	vip := &millracev1beta1.VIP{ObjectMeta: genMeta(t, "", pick(t, "name", name, name, name, "other"))}
	vip.Spec.Address, vip.Spec.Pool = address, pick(t, "pool", "a", "b", "")
	for range rapid.IntRange(0, 3).Draw(t, "claims") {
		vip.Spec.Claims = append(vip.Spec.Claims, millracev1beta1.VIPClaim{
			Namespace: "default", Name: pick(t, "service", "service0", "service1", "service2"), UID: pick(t, "uid", "", "", "a", "b"),
			Ports: pick(t, "ports", nil, nil, []millracev1beta1.ClaimedPort{{Port: 80}, {Port: 53, Protocol: "UDP"}, {Port: 70000, Protocol: "x"}}),
		})
	}
	return vip
}

func genRoute(t *rapid.T, name string) *millracev1beta1.VIPRoute {
	route := &millracev1beta1.VIPRoute{ObjectMeta: genMeta(t, "default", name)}
	route.Spec.ServiceName = pick(t, "service", "service0", "service1", "service9", "")
	for range rapid.IntRange(0, 3).Draw(t, "ports") {
		port := millracev1beta1.VIPRoutePort{
			Port: pick(t, "port", int32(80), 53, 0, 65536), Protocol: pick(t, "protocol", corev1.ProtocolTCP, corev1.ProtocolUDP, "", "SCTP"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "backends") {
			port.Backends = append(port.Backends, millracev1beta1.VIPRouteBackend{
				Namespace: pick(t, "namespace", "", "default", "other"), Name: pick(t, "backend", "service0", "service1", "service2", "service9", ""),
				Port: pick(t, "backend port", int32(80), 53, 0, -1), Weight: pick(t, "weight", int32(1), 90, 0, 1_000_000, -1, 1<<31-1),
				Invalid: rapid.Bool().Draw(t, "invalid"),
			})
		}
		route.Spec.Ports = append(route.Spec.Ports, port)
	}
	return route
}

func genSelector(t *rapid.T) *metav1.LabelSelector {
	selector := genPointer(t, "selector",
		metav1.LabelSelector{}, metav1.LabelSelector{MatchLabels: map[string]string{"tier": "front"}},
		metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "Near"}}})
	return selector
}

func genDuration(t *rapid.T, label string) *metav1.Duration {
	return genPointer(t, label, metav1.Duration{}, metav1.Duration{Duration: 3 * time.Second},
		metav1.Duration{Duration: 1500 * time.Millisecond}, metav1.Duration{Duration: 1 << 62}, metav1.Duration{Duration: -1 << 63})
}

func genPeer(t *rapid.T, name string) *millracev1beta1.LBPeer {
	peer := &millracev1beta1.LBPeer{ObjectMeta: genMeta(t, "", name)}
	peer.Spec = millracev1beta1.LBPeerSpec{
		Router:       millracev1beta1.Router{Address: pick(t, "address", "198.51.100.1", "2001:db8::1", "127.0.0.1", "fe80::1%eth0", "")},
		PeerASN:      pick(t, "asn", int64(64512), 0, -1, 1<<32),
		LocalASN:     pick(t, "local asn", int64(64512), 0, -1, 1<<32),
		PeerPort:     pick(t, "port", int32(0), 179, 65536, -1),
		NodeSelector: genSelector(t), HoldTime: genDuration(t, "hold"), KeepaliveTime: genDuration(t, "keepalive"),
		ConnectRetryTime: genDuration(t, "retry"), MultihopTTL: genPointer(t, "ttl", int32(1), 5, 0, 256),
	}
	return peer
}

func genAdvertisement(t *rapid.T, name string) *millracev1beta1.VIPAdvertisement {
	advertisement := &millracev1beta1.VIPAdvertisement{ObjectMeta: genMeta(t, "", name)}
	advertisement.Spec = millracev1beta1.VIPAdvertisementSpec{
		Pools:           rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 0, 2).Draw(t, "pools"),
		ServiceSelector: genSelector(t), NodeSelector: genSelector(t),
		Communities: rapid.SliceOfN(rapid.SampledFrom([]string{
			"64512:1", "1:2:3", "64512", ":", "::", "65536:0", "1:2:3:4", "-1:0", "1:2:4294967296",
		}), 0, 2).Draw(t, "communities"),
		LocalPreference: genPointer(t, "preference", int64(100), -1, 1<<32),

		AggregationLength: genPointer(t, "aggregation", int32(24), 16, 32),
	}
	return advertisement
}

// genMix draws the previous object, the new one, or neither for each name, mostly the previous ones.
func genMix[T interface {
	comparable
	metav1.Object
}](t *rapid.T, before, fresh []T) []T {
	if rapid.IntRange(0, 2).Draw(t, "mix") > 0 {
		return slices.Clone(before)
	}
	var mixed []T
	for _, object := range before {
		if rapid.IntRange(0, 3).Draw(t, "stays") > 0 {
			mixed = append(mixed, object)
		}
	}
	for _, object := range fresh {
		known := func(other T) bool { return other.GetName() == object.GetName() }
		if rapid.IntRange(0, 1).Draw(t, "comes") > 0 && !slices.ContainsFunc(mixed, known) {
			mixed = append(mixed, object)
		}
	}
	return mixed
}
