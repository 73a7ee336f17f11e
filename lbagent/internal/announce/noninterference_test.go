// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
)

// Few addresses, so that objects conflict.
var (
	someVIPs    = []string{"203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4"}
	somePods    = []string{"198.18.1.1", "198.18.1.2", "198.18.2.1", "198.18.2.2", "198.18.3.1", "203.0.113.200"}
	someHosts   = []string{"198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4", "198.51.100.254", "198.51.100.253"}
	someRanges  = []string{"203.0.113.0/28", "203.0.113.0/24", "198.18.0.0/16", "198.18.1.0/24", "198.51.100.0/24", "203.0.113.200/32"}
	someObjects = []string{"aaa", "mmm", "zzz"}
)

func pick[T any](t *rapid.T, label string, values ...T) T {
	return rapid.SampledFrom(values).Draw(t, label)
}

func pointer[T any](value T) *T { return &value }

// objectIn returns the metadata of an object created at a Unix time.
func objectIn(namespace, name string, created int64) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name), CreationTimestamp: metav1.Unix(created, 0),
		Labels: map[string]string{"tier": "front"},
	}
}

// drawWorld draws objects of a working cluster, created in second 1 by the owner of namespace "old".
func drawWorld(t *rapid.T) *model.Snapshot {
	s := &model.Snapshot{NodeName: "node1", Node: &corev1.Node{ObjectMeta: objectIn("", "node1", 1)}}
	for i := range int32(3) {
		node := &millracev1beta1.LBNode{
			ObjectMeta: objectIn("", fmt.Sprintf("node%d", i+1), 1),
			Spec:       millracev1beta1.LBNodeSpec{ID: i + 1, Addresses: []string{someHosts[i]}},
			Status: millracev1beta1.LBNodeStatus{
				BootID: "b", ServingBootID: "b",
				L2: []millracev1beta1.L2Reach{{Advertisement: "link", Networks: []string{"203.0.113.0/24"}}},
			},
		}
		if rapid.Bool().Draw(t, "has a pod network") {
			node.Spec.PodCIDRs = []string{fmt.Sprintf("198.18.%d.0/24", i+1)}
		}
		s.LBNodes = append(s.LBNodes, node)
	}
	s.Pools = []*millracev1beta1.VIPPool{{
		ObjectMeta: objectIn("", "main", 1), Spec: millracev1beta1.VIPPoolSpec{Addresses: []string{"203.0.113.0/28"}},
	}}
	s.Peers = []*millracev1beta1.LBPeer{drawPeer(t, "main", 1, "198.51.100.254")}
	s.Advertisements = []*millracev1beta1.VIPAdvertisement{{ObjectMeta: objectIn("", "main", 1)}}
	if rapid.Bool().Draw(t, "on links") {
		s.Advertisements = append(s.Advertisements, &millracev1beta1.VIPAdvertisement{
			ObjectMeta: objectIn("", "link", 1), Spec: millracev1beta1.VIPAdvertisementSpec{L2: &millracev1beta1.L2Advertisement{}},
		})
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "Services") {
		name := fmt.Sprintf("web%d", i)
		s.Services = append(s.Services, drawService(t, "old", name, 1))
		s.VIPs = append(s.VIPs, vipFor(someVIPs[i], "old", name, 1))
		s.EndpointSlices = append(s.EndpointSlices, drawSlice(t, "old", name, name, 1))
	}
	settlePools(s)
	return s
}

func settlePools(s *model.Snapshot) {
	var occupied []desired.Occupied
	for _, node := range s.LBNodes {
		occupied = append(occupied, desired.OccupiedByLBNode(node)...)
	}
	for _, peer := range s.Peers {
		occupied = append(occupied, desired.OccupiedByPeer(peer)...)
	}
	objects := make([]millracev1beta1.VIPPool, 0, len(s.Pools))
	for _, object := range s.Pools {
		objects = append(objects, *object.DeepCopy())
	}
	pools, _ := desired.Pools(objects, desired.NewOccupation(occupied))
	for i := range objects {
		at := slices.IndexFunc(pools, func(pool desired.Pool) bool { return pool.Name == objects[i].Name })
		if at < 0 {
			objects[i].Status.Usable = nil
		} else if added := pools[at].Added(&objects[i]); !slices.ContainsFunc(s.EndpointSlices, func(slice *discoveryv1.EndpointSlice) bool {
			return len(desired.EndpointsWithin(slice, added)) > 0
		}) {
			objects[i].Status.Usable = pools[at].UsableRanges()
		}
		s.Pools[i] = &objects[i]
	}
}

func drawService(t *rapid.T, namespace, name string, created int64) *corev1.Service {
	service := &corev1.Service{ObjectMeta: objectIn(namespace, name, created)}
	service.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: pointer(millracev1beta1.Class),
		ExternalTrafficPolicy: pick(t, "policy", corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal),
		Ports:                 []corev1.ServicePort{{Name: "http", Port: pick(t, "port", int32(80), 81), Protocol: corev1.ProtocolTCP}},
		ClusterIPs:            []string{pick(t, "cluster IP", "198.19.0.1", "203.0.113.100")},
		TrafficDistribution:   pick(t, "distribution", nil, pointer(corev1.ServiceTrafficDistributionPreferSameZone)),
	}
	return service
}

func vipFor(address, namespace, service string, created int64) *millracev1beta1.VIP {
	return &millracev1beta1.VIP{
		ObjectMeta: objectIn("", millracev1beta1.VIPName(netip.MustParseAddr(address)), created),
		Spec: millracev1beta1.VIPSpec{
			Address: address, Pool: "main",
			Claims: []millracev1beta1.VIPClaim{{Namespace: namespace, Name: service, UID: namespace + "/" + service}},
		},
	}
}

func drawSlice(t *rapid.T, namespace, name, service string, created int64) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: objectIn(namespace, name, created), AddressType: discoveryv1.AddressTypeIPv4}
	slice.Labels[discoveryv1.LabelServiceName] = service
	slice.Ports = []discoveryv1.EndpointPort{{Name: pointer("http"), Port: pointer(int32(8080)), Protocol: pointer(corev1.ProtocolTCP)}}
	for _, address := range rapid.SliceOfNDistinct(rapid.SampledFrom(somePods), 1, 3, rapid.ID[string]).Draw(t, "endpoints") {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address}, NodeName: pick(t, "node", nil, pointer("node1"), pointer("node2"), pointer("node3")),
		})
	}
	return slice
}

func drawPeer(t *rapid.T, name string, created int64, addresses ...string) *millracev1beta1.LBPeer {
	return &millracev1beta1.LBPeer{
		ObjectMeta: objectIn("", name, created),
		Spec: millracev1beta1.LBPeerSpec{
			Router: millracev1beta1.Router{Address: pick(t, "router", addresses...)}, PeerASN: 64500, LocalASN: 64512, PeerPort: 179,
		},
	}
}

// addTo adds another owner's object, created in second 2, and returns its kind.
func addTo(t *rapid.T, s *model.Snapshot) (kind string) {
	name := pick(t, "name", someObjects...)
	all := slices.Concat(someVIPs, somePods, someHosts)
	kind = pick(t, "kind", "VIPPool", "VIPAdvertisement", "LBPeer", "LBNode", "Service", "VIP", "EndpointSlice", "VIPRoute")
	switch kind {
	case "VIPPool":
		spec := millracev1beta1.VIPPoolSpec{Addresses: []string{pick(t, "addresses", someRanges...)}}
		if rapid.Bool().Draw(t, "reserves") {
			spec.Reserved = []string{pick(t, "reserved", someRanges...)}
		}
		s.Pools = append(s.Pools, &millracev1beta1.VIPPool{ObjectMeta: objectIn("", name, 2), Spec: spec})
	case "VIPAdvertisement":
		object := &millracev1beta1.VIPAdvertisement{ObjectMeta: objectIn("", name, 2)}
		if rapid.Bool().Draw(t, "l2") {
			object.Spec.L2 = &millracev1beta1.L2Advertisement{}
		} else {
			object.Spec.AggregationLength = pick(t, "aggregation", nil, pointer(int32(24)), pointer(int32(28)))
			object.Spec.LocalPreference = pick(t, "preference", nil, pointer(int64(7)))
		}
		s.Advertisements = append(s.Advertisements, object)
	case "LBPeer":
		peer := drawPeer(t, name, 2, all...)
		if rapid.Bool().Draw(t, "canary") {
			peer.Spec.Canaries = []string{pick(t, "canary", all...)}
		}
		s.Peers = append(s.Peers, peer)
	case "LBNode":
		node := &millracev1beta1.LBNode{ObjectMeta: objectIn("", name, 2), Status: millracev1beta1.LBNodeStatus{BootID: "b", ServingBootID: "b"}}
		node.Spec.ID, node.Spec.Addresses = pick(t, "id", int32(1), 2, 4), []string{pick(t, "address", all...)}
		node.Spec.PodCIDRs = []string{pick(t, "pods", "203.0.113.0/24", "198.18.0.0/16", "198.18.9.0/24")}
		node.Spec.Zone = pick(t, "zone", "", "a")
		s.LBNodes = append(s.LBNodes, node)
	case "Service":
		s.Services = append(s.Services, drawService(t, "new", name, 2))
		s.VIPs = append(s.VIPs, vipFor(someVIPs[3], "new", name, 2))
		s.EndpointSlices = append(s.EndpointSlices, drawSlice(t, "new", name, name, 2))
	case "VIP":
		address := pick(t, "address", append(all[len(someVIPs)-1:len(all):len(all)], "192.0.2.1")...)
		s.VIPs = append(s.VIPs, vipFor(address, pick(t, "claims", "new", "old"), "web0", 2))
	case "EndpointSlice":
		s.EndpointSlices = append(s.EndpointSlices, drawSlice(t, "new", name, pick(t, "service", "web0", "web1", "x"), 2))
	case "VIPRoute":
		s.Routes = append(s.Routes, &millracev1beta1.VIPRoute{ObjectMeta: objectIn("new", name, 2), Spec: millracev1beta1.VIPRouteSpec{
			ServiceName: "web0", Ports: []millracev1beta1.VIPRoutePort{{Port: 80}},
		}})
	}
	return kind
}

type served struct {
	model     *model.Model
	state     *forwarding.State
	routes    Routes
	decisions map[netip.Addr]Decision
}

func serve(s *model.Snapshot, before *served, limits forwarding.Limits) *served {
	m := model.Build(s)
	want, _ := plan.NewPlanner(before.state).Plan(before.state, m, limits)
	announced := map[netip.Addr]bool{}
	for address, decision := range before.decisions {
		announced[address] = decision.Reason == ""
	}
	node := &Node{Programmed: want, Planned: want, Announced: announced, Links: map[string][]Link{
		"link": {{Interface: "eth0", Prefix: netip.MustParsePrefix("203.0.113.0/24")}},
	}}
	now := &served{model: m, state: want, decisions: map[netip.Addr]Decision{}}
	var decisions []Decision
	now.routes, decisions = Decide(m, node)
	for _, decision := range decisions {
		now.decisions[decision.VIP] = decision
	}
	return now
}

// lost returns the frontends, endpoints and routes missing in a later pass.
func (before *served) lost(now *served, addsNode bool) (lost []string) {
	add := func(format string, arguments ...any) { lost = append(lost, fmt.Sprintf(format, arguments...)) }
	for _, frontend := range before.model.Frontends {
		i, found := slices.BinarySearchFunc(now.model.Frontends, frontend, func(a, b *model.Frontend) int { return a.Key.Compare(b.Key) })
		if !found {
			add("frontend %s", frontend.Key)
			continue
		}
		kept := now.model.Frontends[i]
		for node := range frontend.Weights {
			if kept.Weights[node] == 0 {
				add("the endpoints of %s on node %d", frontend.Key, node)
			}
		}
		for _, endpoint := range frontend.Endpoints {
			if !slices.Contains(kept.Endpoints, endpoint) {
				add("the endpoint %v of %s", endpoint, frontend.Key)
			}
		}
		had, has := before.state.Frontends[frontend.Key], now.state.Frontends[frontend.Key]
		if had.ID != 0 && has.ID == 0 || had.Endpoints != 0 && has.Endpoints == 0 || !had.Local && had.Table != 0 && has.Table == 0 {
			add("the entry of %s in the maps: %+v, not %+v", frontend.Key, has, had)
		}
	}
	for address, decision := range before.decisions {
		reached := now.decisions[address]
		for _, peer := range decision.Peers {
			covers := func(route Route) bool { return route.Prefix.Contains(address) }
			if !slices.Contains(reached.Peers, peer) || !slices.ContainsFunc(now.routes[peer], covers) {
				add("the route to %s for %s: %s %s", address, peer, reached.Reason, reached.Message)
			}
		}
		if len(decision.Interfaces) > 0 && len(reached.Interfaces) == 0 && !addsNode {
			add("the answers for %s: %s", address, reached.Reason)
		}
	}
	return lost
}

// A new object removes no frontend, endpoint or announcement of another owner's older object, even with
// full maps.
func TestNewObjectsKeepExistingOwners(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawWorld(t)
		room := rapid.IntRange(0, 2).Draw(t, "room")
		capacity := len(s.VIPs) + room
		limits := forwarding.Limits{
			Frontends: capacity, NodeTables: capacity, EndpointTables: capacity, Endpoints: 8 + room, VIPs: capacity, SourceRanges: 10,
		}
		nothing := &served{state: forwarding.NewState()}
		before := serve(s, nothing, limits)
		before = serve(s, before, limits)
		next := *s
		next.Pools, next.Peers, next.LBNodes = slices.Clone(s.Pools), slices.Clone(s.Peers), slices.Clone(s.LBNodes)
		kind := addTo(t, &next)
		settlePools(&next)
		if lost := before.lost(serve(&next, before, limits), kind == "LBNode"); len(lost) > 0 {
			t.Fatalf("a new %s removes %v; remaining VIPs %v", kind, lost, slices.Collect(maps.Keys(before.decisions)))
		}
	})
}
