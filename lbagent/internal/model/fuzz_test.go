// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// FuzzBuild gives Build two objects of each kind, whatever they hold. With
// -fuzzminimizetime=10x most of the time goes into new inputs, not into making
// those that were found smaller.
func FuzzBuild(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		s := readSnapshot(f, archive.Files[0].Data)
		f.Add(encodeFirst(s.Services), encodeFirst(s.EndpointSlices), encodeFirst(s.VIPs), encodeFirst(s.LBNodes),
			encodeFirst(s.Peers), encodeFirst(s.Advertisements), encodeFirst(s.Routes))
	}
	f.Fuzz(func(t *testing.T, service, slice, vip, node, peer, advertisement, route []byte) {
		s := &Snapshot{NodeName: testNode, Node: &corev1.Node{}}
		decodeInto(&s.Services, service)
		decodeInto(&s.EndpointSlices, slice)
		decodeInto(&s.VIPs, vip)
		decodeInto(&s.LBNodes, node)
		decodeInto(&s.Peers, peer)
		decodeInto(&s.Advertisements, advertisement)
		decodeInto(&s.Routes, route)
		checkModel(t, s, Build(s))
	})
}

func encodeFirst[T any](objects []*T) []byte {
	if len(objects) == 0 {
		return nil
	}
	data, err := yaml.Marshal(objects[0])
	if err != nil {
		panic(err)
	}
	return data
}

// decodeInto adds the object under two names, because much of what can go wrong
// is between two, and a nil one.
func decodeInto[T any, P interface {
	*T
	metav1.Object
}](objects *[]P, data []byte) {
	object, twin := P(new(T)), P(new(T))
	if yaml.Unmarshal(data, object) == nil && yaml.Unmarshal(data, twin) == nil {
		twin.SetName(object.GetName() + "-twin")
		*objects = append(*objects, object, twin, nil)
	}
}

// TestModelHolds builds models of many objects that refer to each other, some
// of them wrong.
func TestModelHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot(t)
		m := Build(s)
		checkModel(t, s, m)
		shuffle(s, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0)))
		other := Build(s)
		if !reflect.DeepEqual(m, other) {
			t.Fatalf("another order of the objects gives\n%s\nnot\n%s", dump(other), dump(m))
		}
	})
}

// TestBuilderGoesOn builds models of snapshots that have many objects in common.
func TestBuilderGoesOn(t *testing.T) {
	kept := 0
	rapid.Check(t, func(t *rapid.T) {
		var builder Builder
		s := genSnapshot(t)
		var before *Model
		for range rapid.IntRange(1, 5).Draw(t, "steps") {
			m, changes := builder.Build(s)
			if whole := Build(s); !reflect.DeepEqual(m, whole) {
				t.Fatalf("the Builder gives\n%s\nnot\n%s", dump(m), dump(whole))
			}
			if changes != nil {
				checkChanges(t, changes, before, m)
				kept += len(m.VIPs) - len(changes.VIPs)
			}
			before = m
			next, fresh := *s, genSnapshot(t)
			next.Node = pick(t, "node", s.Node, s.Node, fresh.Node)
			next.LBNodes = genMix(t, s.LBNodes, fresh.LBNodes)
			next.Services = genMix(t, s.Services, fresh.Services)
			next.EndpointSlices = genMix(t, s.EndpointSlices, fresh.EndpointSlices)
			next.VIPs = genMix(t, s.VIPs, fresh.VIPs)
			next.Routes = genMix(t, s.Routes, fresh.Routes)
			next.Pools = genMix(t, s.Pools, fresh.Pools)
			next.Peers = genMix(t, s.Peers, fresh.Peers)
			next.Advertisements = genMix(t, s.Advertisements, fresh.Advertisements)
			if rapid.Bool().Draw(t, "a node goes down") {
				next.Down = map[forwarding.NodeID]bool{2: rapid.Bool().Draw(t, "down")}
			}
			s = &next
			next.DynamicNeighbors = pick(t, "dynamic neighbors", s.DynamicNeighbors, nil, []netip.Addr{netip.MustParseAddr("203.0.113.1")})
			if rapid.Bool().Draw(t, "objects leave their places") {
				shuffle(s, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0)))
			}
		}
	})
	if kept <= 0 {
		t.Error("every VIP was read each time")
	}
}

// checkChanges reports what differs between two models and is not among the changes.
func checkChanges(t *rapid.T, changes *Changes, before, m *Model) {
	if changes.Since != before {
		t.Fatal("the changes are since another model")
	}
	if !slices.IsSortedFunc(changes.VIPs, netip.Addr.Compare) {
		t.Fatalf("not sorted: %v", changes.VIPs)
	}
	unchanged := func(m *Model) (vips []VIP, frontends []*Frontend) {
		for _, vip := range m.VIPs {
			if !slices.Contains(changes.VIPs, vip.Address) {
				vips = append(vips, vip)
			}
		}
		for _, frontend := range m.Frontends {
			if !slices.Contains(changes.VIPs, frontend.Key.VIP) {
				frontends = append(frontends, frontend)
			}
		}
		return vips, frontends
	}
	vips, frontends := unchanged(m)
	vipsBefore, frontendsBefore := unchanged(before)
	if !reflect.DeepEqual(vips, vipsBefore) || !reflect.DeepEqual(frontends, frontendsBefore) {
		t.Fatalf("beside %v there are changes from\n%s\nto\n%s", changes.VIPs, dump(before), dump(m))
	}
}

// TestBuilderFollowsNodes changes the nodes of snapshots that are mostly right, and nothing else. VIPs
// without endpoints on them are not read again.
func TestBuilderFollowsNodes(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	archives := make([][]byte, len(files))
	for i, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		archives[i] = archive.Files[0].Data
	}
	changed, kept := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		s := readSnapshot(t, archives[rapid.IntRange(0, len(files)-1).Draw(r, "fixture")])
		var builder Builder
		before, _ := builder.Build(s)
		for range rapid.IntRange(1, 6).Draw(r, "steps") {
			next := *s
			s = &next
			s.LBNodes, s.Down = slices.Clone(s.LBNodes), maps.Clone(s.Down)
			genOtherNode(r, s)
			m, changes := builder.Build(s)
			if whole := Build(s); !reflect.DeepEqual(m, whole) {
				r.Fatalf("the Builder gives\n%s\nnot\n%s", dump(m), dump(whole))
			}
			if changes != nil {
				checkChanges(r, changes, before, m)
				changed, kept = changed+len(changes.VIPs), kept+len(m.VIPs)-len(changes.VIPs)
			}
			before = m
		}
	})
	t.Logf("%d VIPs were read for their nodes, %d stayed", changed, kept)
	if changed == 0 || kept <= 0 {
		t.Errorf("%d VIPs were read for their nodes, %d stayed", changed, kept)
	}
}

// genOtherNode has a node of a snapshot fail, boot, move to another zone, leave or join.
func genOtherNode(t *rapid.T, s *Snapshot) {
	if len(s.LBNodes) == 0 || rapid.IntRange(0, 7).Draw(t, "joins") == 0 {
		id := rapid.Int32Range(2, 9).Draw(t, "id")
		s.LBNodes = append(s.LBNodes, &millracev1alpha1.LBNode{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", id)},
			Spec:       millracev1alpha1.LBNodeSpec{ID: id, Addresses: []string{fmt.Sprintf("198.51.100.%d", id)}},
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

// checkChanges reports of each name the object before, the fresh one, or none. Mostly all are those before.
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

// checkModel reports what must not be in any model.
func checkModel(t interface{ Fatalf(string, ...any) }, s *Snapshot, m *Model) {
	nodes := map[forwarding.NodeID]bool{}
	addresses := map[netip.Addr]bool{{}: true}
	for _, node := range m.Nodes {
		if node.ID < 1 || node.ID > forwarding.MaxNodeID || nodes[node.ID] {
			t.Fatalf("node %s has the id %d", node.Name, node.ID)
		}
		nodes[node.ID] = true
		if !node.IPv4.IsValid() && !node.IPv6.IsValid() {
			t.Fatalf("node %s has no address", node.Name)
		}
		for _, address := range []netip.Addr{node.IPv4, node.IPv6} {
			if addresses[address] && address.IsValid() {
				t.Fatalf("two nodes have the address %s", address)
			}
			addresses[address] = true
		}
	}
	if m.Self.ID != 0 && !nodes[m.Self.ID] {
		t.Fatalf("this node, %d, is not among the nodes", m.Self.ID)
	}
	vips := map[netip.Addr]bool{}
	for _, vip := range m.VIPs {
		if vips[vip.Address] || vip.Address.Is4In6() || !vip.Address.IsGlobalUnicast() {
			t.Fatalf("VIP %s", vip.Address)
		}
		vips[vip.Address] = true
	}
	for i, frontend := range m.Frontends {
		if i > 0 && m.Frontends[i-1].Key.Compare(frontend.Key) >= 0 {
			t.Fatalf("%s comes after %s", frontend.Key, m.Frontends[i-1].Key)
		}
		if !vips[frontend.Key.VIP] || frontend.Key.Port == 0 {
			t.Fatalf("%s is on no VIP or has no port", frontend.Key)
		}
		checkEndpoints(t, frontend)
		checkSources(t, frontend)
		if frontend.Affinity > 86400 {
			t.Fatalf("%s has an affinity of %d s", frontend.Key, frontend.Affinity)
		}
		if frontend.Shared && !frontend.Local || frontend.Living && len(frontend.Weights) > 0 ||
			!frontend.Living && len(frontend.Weights) == 0 && len(frontend.Draining) > 0 {
			t.Fatalf("%s is not what it can be: %+v", frontend.Key, frontend)
		}
		checkZones(t, m, frontend, len(s.Routes) > 0)
		for node, weight := range frontend.Weights {
			if !nodes[node] || weight == 0 {
				t.Fatalf("%s: node %d has the weight %d", frontend.Key, node, weight)
			}
		}
		own := uint32(0)
		for i := range frontend.Endpoints {
			own += frontend.Share(i)
		}
		if frontend.Weights[m.Self.ID] != own && m.Self.ID != 0 {
			t.Fatalf("%s: this node has the weight %d with endpoints that weigh %d",
				frontend.Key, frontend.Weights[m.Self.ID], own)
		}
	}
	checkClaims(t, s, m)
	for _, problem := range m.Problems {
		if problem.Object.Kind == "" || problem.Reason == "" || problem.Message == "" {
			t.Fatalf("a Problem says too little: %+v", problem)
		}
	}
	_ = dump(m)
}

// checkZones holds the weights of zones against those of all: they are a part of them, and
// there for every zone with nodes or for none. With routes, which keep the shares of Services, they
// are not such a part.
func checkZones(t interface{ Fatalf(string, ...any) }, m *Model, frontend *Frontend, routes bool) {
	var inhabited [forwarding.Zones]bool
	for _, node := range m.Nodes {
		inhabited[node.Zone] = true
	}
	zonal := slices.ContainsFunc(frontend.Zones[:], func(weights map[forwarding.NodeID]uint32) bool { return weights != nil })
	if zonal && frontend.Local {
		t.Fatalf("%s is Local and has zones", frontend.Key)
	}
	for zone, weights := range frontend.Zones {
		if (weights != nil) != (zonal && inhabited[zone]) {
			t.Fatalf("%s: zone %d has the weights %v, nodes: %t", frontend.Key, zone, weights, inhabited[zone])
		}
		if zonal && inhabited[zone] && len(weights) == 0 && len(frontend.Weights) > 0 {
			t.Fatalf("%s: zone %d has no endpoints", frontend.Key, zone)
		}
		for node, weight := range weights {
			if weight == 0 || weight > frontend.Weights[node] && !routes || frontend.Weights[node] == 0 {
				t.Fatalf("%s: zone %d has the weight %d for node %d of %d", frontend.Key, zone, weight, node, frontend.Weights[node])
			}
		}
	}
}

func checkSources(t interface{ Fatalf(string, ...any) }, frontend *Frontend) {
	if !frontend.Restricted && len(frontend.Sources) > 0 {
		t.Fatalf("%s admits everybody and has the prefixes %v", frontend.Key, frontend.Sources)
	}
	for i, prefix := range frontend.Sources {
		if prefix != prefix.Masked() || prefix.Bits() == 0 || prefix.Addr().Is4() != frontend.Key.VIP.Is4() || prefix.Addr().Is4In6() {
			t.Fatalf("%s admits %s", frontend.Key, prefix)
		}
		if i > 0 && (frontend.Sources[i-1].Overlaps(prefix) || frontend.Sources[i-1].Compare(prefix) >= 0) {
			t.Fatalf("%s: %s comes after %s", frontend.Key, prefix, frontend.Sources[i-1])
		}
	}
}

func checkEndpoints(t interface{ Fatalf(string, ...any) }, frontend *Frontend) {
	for _, list := range [][]forwarding.Endpoint{frontend.Endpoints, frontend.Draining} {
		for i, endpoint := range list {
			if frontend.Key.Protocol == forwarding.ProtocolSCTP && endpoint.Port != frontend.Key.Port {
				t.Fatalf("%s has the endpoint %v, with another port", frontend.Key, endpoint)
			}
			if endpoint.Address.Is4() != frontend.Key.VIP.Is4() || endpoint.Port == 0 {
				t.Fatalf("%s has the endpoint %v", frontend.Key, endpoint)
			}
			if i > 0 && list[i-1].Compare(endpoint) >= 0 {
				t.Fatalf("%s: endpoint %v comes after %v", frontend.Key, endpoint, list[i-1])
			}
		}
	}
	if len(frontend.Shares) != len(frontend.Endpoints) && frontend.Shares != nil {
		t.Fatalf("%s has %d endpoints and %d shares", frontend.Key, len(frontend.Endpoints), len(frontend.Shares))
	}
	if slices.Contains(frontend.Shares, 0) || frontend.Refused > 0 && len(frontend.Endpoints) == 0 {
		t.Fatalf("%s has the shares %v, and refuses %d", frontend.Key, frontend.Shares, frontend.Refused)
	}
	for _, endpoint := range frontend.Draining {
		if slices.Contains(frontend.Endpoints, endpoint) {
			t.Fatalf("%s: endpoint %v is usable and draining", frontend.Key, endpoint)
		}
	}
}

// pick draws one of a few values, so that objects meet.
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

func genLBNode(t *rapid.T, name string) *millracev1alpha1.LBNode {
	node := &millracev1alpha1.LBNode{ObjectMeta: genMeta(t, "", name)}
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
	service.Spec.LoadBalancerClass = genPointer(t, "class", millracev1alpha1.Class, millracev1alpha1.Class, "example.com/lb", "")
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

func genVIP(t *rapid.T, i int) *millracev1alpha1.VIP {
	address := pick(t, "address", fmt.Sprintf("203.0.113.%d", i), fmt.Sprintf("2001:db8:1::%d", i), fmt.Sprintf("::ffff:203.0.113.%d", i), "x")
	name := address
	if parsed, err := netip.ParseAddr(address); err == nil {
		name = millracev1alpha1.VIPName(parsed)
	}
	vip := &millracev1alpha1.VIP{ObjectMeta: genMeta(t, "", pick(t, "name", name, name, name, "other"))}
	vip.Spec.Address, vip.Spec.Pool = address, pick(t, "pool", "a", "b", "")
	for range rapid.IntRange(0, 3).Draw(t, "claims") {
		vip.Spec.Claims = append(vip.Spec.Claims, millracev1alpha1.VIPClaim{
			Namespace: "default", Name: pick(t, "service", "service0", "service1", "service2"), UID: pick(t, "uid", "", "", "a", "b"),
			Ports: pick(t, "ports", nil, nil, []millracev1alpha1.ClaimedPort{{Port: 80}, {Port: 53, Protocol: "UDP"}, {Port: 70000, Protocol: "x"}}),
		})
	}
	return vip
}

func genRoute(t *rapid.T, name string) *millracev1alpha1.VIPRoute {
	route := &millracev1alpha1.VIPRoute{ObjectMeta: genMeta(t, "default", name)}
	route.Spec.ServiceName = pick(t, "service", "service0", "service1", "service9", "")
	for range rapid.IntRange(0, 3).Draw(t, "ports") {
		port := millracev1alpha1.VIPRoutePort{
			Port: pick(t, "port", int32(80), 53, 0, 65536), Protocol: pick(t, "protocol", corev1.ProtocolTCP, corev1.ProtocolUDP, "", "SCTP"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "backends") {
			port.Backends = append(port.Backends, millracev1alpha1.VIPRouteBackend{
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

func genPeer(t *rapid.T, name string) *millracev1alpha1.LBPeer {
	peer := &millracev1alpha1.LBPeer{ObjectMeta: genMeta(t, "", name)}
	peer.Spec = millracev1alpha1.LBPeerSpec{
		PeerAddress:  pick(t, "address", "198.51.100.1", "2001:db8::1", "127.0.0.1", "fe80::1%eth0", ""),
		PeerASN:      pick(t, "asn", int64(64512), 0, -1, 1<<32),
		LocalASN:     pick(t, "local asn", int64(64512), 0, -1, 1<<32),
		PeerPort:     pick(t, "port", int32(0), 179, 65536, -1),
		NodeSelector: genSelector(t), HoldTime: genDuration(t, "hold"), KeepaliveTime: genDuration(t, "keepalive"),
		ConnectRetryTime: genDuration(t, "retry"), EBGPMultiHop: genPointer(t, "ttl", int32(1), 5, 0, 256),
	}
	return peer
}

func genAdvertisement(t *rapid.T, name string) *millracev1alpha1.VIPAdvertisement {
	advertisement := &millracev1alpha1.VIPAdvertisement{ObjectMeta: genMeta(t, "", name)}
	advertisement.Spec = millracev1alpha1.VIPAdvertisementSpec{
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
