// SPDX-License-Identifier: Apache-2.0

// Package uitest provides sources and clusters for tests of the page.
package uitest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/timeline"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
)

// Source is a ui.Source with a state that tests set.
type Source struct {
	mu    sync.Mutex
	state *view.State
	Hops  []*consoleapi.Trace
	Pod   string
	Lines []timeline.Line
	// Routing is the response to Routes.
	Routing *routing.View
}

// NewSource returns a source with a state.
func NewSource(state *view.State) *Source { return &Source{state: state} }

// Set replaces the state.
func (s *Source) Set(state *view.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
}

// State implements ui.Source.
func (s *Source) State() *view.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Query implements ui.Source from the state's announcements or its input's agents.
func (s *Source) Query(_ context.Context, id string) (*ui.Response, error) {
	answer := &ui.Response{}
	in := *s.State().Input
	in.VIPs = slices.DeleteFunc(slices.Clone(in.VIPs), func(vip millracev1beta1.VIP) bool {
		return !slices.ContainsFunc(vip.Spec.Claims, func(claim millracev1beta1.VIPClaim) bool {
			return "service/"+claim.Namespace+"/"+claim.Name == id
		})
	})
	var addresses []string
	for i := range in.VIPs {
		addresses = append(addresses, in.VIPs[i].Spec.Address)
	}
	if len(addresses) == 0 {
		return answer, nil
	}
	if list := s.State().Announcements; list != nil {
		var err error
		if in.Agents, err = report.AnnouncedLive(list, addresses, nil); err != nil {
			return nil, err
		}
	}
	for _, vip := range report.Build(&in).VIPs {
		for _, service := range vip.Services {
			if id == "service/"+service.Namespace+"/"+service.Name {
				answer.VIPs = append(answer.VIPs, vip)
			}
		}
	}
	return answer, nil
}

// Why implements ui.Source.
func (s *Source) Why(_ context.Context, query ui.WhyQuery) (*ui.Timeline, error) {
	return &ui.Timeline{Why: render.Why{Service: query.Service, Nodes: []string{"node1", "node2"}, Lines: s.Lines}}, nil
}

// Routes implements ui.Source.
func (s *Source) Routes(context.Context) (*routing.View, error) { return s.Routing, nil }

// Trace implements ui.Source.
func (s *Source) Trace(context.Context, ui.Packet) (any, error) {
	return map[string]any{"hops": s.Hops, "pod": s.Pod}, nil
}

// Size is the size of a generated cluster.
type Size struct {
	Nodes, VIPs, Zones int
	// Down counts nodes with a session down, NotReady those without ready agent, Unserved Services without
	// endpoint.
	Down, NotReady, Unserved int
}

var routers = []string{"tor-a", "tor-b"}

// Cluster returns a cluster whose nodes have sessions with two routers and announce each Service.
func Cluster(size Size) *view.State {
	in := &report.Input{Namespace: "millrace-system"}
	ready := []metav1.Condition{{Type: millracev1beta1.ConditionReady, Status: metav1.ConditionTrue, Reason: millracev1beta1.ReasonValid}}
	in.Pools = []millracev1beta1.VIPPool{{ObjectMeta: metav1.ObjectMeta{Name: "public"}, Spec: millracev1beta1.VIPPoolSpec{Addresses: []string{"203.0.113.0/24", "2001:db8::/64"}},
		Status: millracev1beta1.VIPPoolStatus{Conditions: ready, Assigned: new(int64), FreeDisplay: "2^53"},
	}}
	in.Advertisements = []millracev1beta1.VIPAdvertisement{{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Status: millracev1beta1.VIPAdvertisementStatus{Conditions: ready}}}
	for i, name := range routers {
		in.Peers = append(in.Peers, millracev1beta1.LBPeer{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Status: millracev1beta1.LBPeerStatus{Conditions: ready},
			Spec: millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Address: fmt.Sprintf("198.51.100.%d", i+1)}, PeerASN: 64512},
		})
	}
	in.Pods = append(in.Pods, pod("operator", "", true))
	for n := range size.Nodes {
		addNode(in, size, n)
	}
	state := &view.State{
		Cluster: "production", Input: in,
		Traffic:       &livev1alpha1.ServiceTrafficList{Window: metav1.Duration{Duration: 10 * time.Second}, Drops: map[string]float64{}},
		Announcements: &livev1alpha1.VIPAnnouncementList{},
	}
	for i := range in.LBNodes {
		state.Announcements.Answered = append(state.Announcements.Answered, in.LBNodes[i].Name)
	}
	for n := range size.VIPs {
		addService(state, size, n)
	}
	if size.Down > 0 {
		state.Traffic.Drops["no_endpoint"] = 12.4
		state.Traffic.Drops["rate_limit"] = 3.1
	}
	return state
}

func pod(component, node string, ready bool) corev1.Pod {
	status := corev1.ConditionTrue
	if !ready {
		status = corev1.ConditionFalse
	}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "millrace-" + component + "-" + node, Labels: map[string]string{
			"app.kubernetes.io/name": "millrace", "app.kubernetes.io/component": component,
		}},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status, Message: "the container does not answer"}}},
	}
}

func addNode(in *report.Input, size Size, n int) {
	name := fmt.Sprintf("node-%03d", n+1)
	zone := fmt.Sprintf("rack%d", n%max(size.Zones, 1)+1)
	in.LBNodes = append(in.LBNodes, millracev1beta1.LBNode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       millracev1beta1.LBNodeSpec{ID: int32(n + 1), Zone: zone, Addresses: []string{fmt.Sprintf("198.18.%d.%d", n/250, n%250+1)}},
	})
	in.Pods = append(in.Pods, pod("agent", name, n >= size.Down+size.NotReady || n < size.Down))
	since := metav1.NewTime(time.Now().Add(-26 * time.Hour))
	status := millracev1beta1.LBNodeReportStatus{
		Version: "v0.1.0", VIPs: millracev1beta1.VIPCounts{Programmed: int32(size.VIPs), Announced: int32(size.VIPs)},
		Interfaces: []millracev1beta1.InterfaceStatus{{Name: "eth0", XDPMode: millracev1beta1.XDPNative}},
		Conditions: []metav1.Condition{{Type: millracev1beta1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: since}},
	}
	for i, peer := range routers {
		session := millracev1beta1.SessionStatus{
			Peer: peer, Address: fmt.Sprintf("198.51.100.%d", i+1), State: millracev1beta1.SessionEstablished, Since: &since,
			BFD: &millracev1beta1.BFDStatus{State: "Up"},
		}
		if i == 1 && n < size.Down {
			session.State, session.Message = millracev1beta1.SessionActive, "connect: connection refused"
			session.BFD = &millracev1beta1.BFDStatus{State: "Down", Message: "no packet of the router came"}
		}
		status.Sessions = append(status.Sessions, session)
	}
	if n < size.Down {
		status.Conditions = append(status.Conditions, metav1.Condition{
			Type: millracev1beta1.ConditionBGPEstablished, Status: metav1.ConditionFalse, Reason: millracev1beta1.ReasonNotEstablished,
			Message: "1 of 2 sessions is not established: tor-b", LastTransitionTime: since,
		})
	}
	in.LBNodeReports = append(in.LBNodeReports, millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: status})
}

var names = []string{"web", "api", "mail", "auth", "search", "cart", "media", "dns"}

func addService(state *view.State, size Size, n int) {
	in := state.Input
	namespace, name := fmt.Sprintf("team-%02d", n/len(names)%40+1), names[n%len(names)]
	if n >= 40*len(names) {
		name = fmt.Sprintf("%s-%d", name, n/(40*len(names)))
	}
	address := netip.AddrFrom4([4]byte{203, 0, byte(113 + n/256), byte(n)}).String()
	local := metav1.ObjectMeta{Namespace: namespace, Name: name}
	service := corev1.Service{ObjectMeta: local}
	service.Spec.Type = corev1.ServiceTypeLoadBalancer
	service.Spec.Ports = []corev1.ServicePort{{Port: 443, Protocol: corev1.ProtocolTCP}}
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	in.Services = append(in.Services, service)
	in.VIPs = append(in.VIPs, millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: address},
		Spec:       millracev1beta1.VIPSpec{Address: address, Pool: "public", Claims: []millracev1beta1.VIPClaim{{Namespace: namespace, Name: name}}},
	})
	served := n >= size.Unserved
	in.EndpointSlices = append(in.EndpointSlices, endpoints(local, size, n, served))
	announced := livev1alpha1.VIPAnnouncement{Address: address}
	announced.Nodes.Total = int32(size.Nodes)
	all := fmt.Sprintf("0-%d", size.Nodes-1)
	if served {
		announced.Nodes.Announcing = int32(size.Nodes)
		announced.Announced = []livev1alpha1.Announced{{Peers: routers, Count: int32(size.Nodes), NodeRanges: all}}
	} else {
		announced.Withheld = []livev1alpha1.Withheld{{Reason: millracev1beta1.ReasonNoEndpoints, Message: "no Service on the VIP has an endpoint", NodeRanges: all}}
	}
	state.Announcements.Items = append(state.Announcements.Items, announced)
	rates := livev1alpha1.TrafficRates{Connections: float64(n%9) * 11, Packets: float64(n%9) * 420, Bits: float64(n%9) * 1.9e6}
	item := livev1alpha1.ServiceTraffic{ObjectMeta: local, Rates: rates, Drops: map[string]float64{}}
	item.Frontends = []livev1alpha1.FrontendTraffic{{VIP: address, Port: 443, Protocol: "TCP", Rates: rates}}
	if !served {
		item.Drops["no_endpoint"] = 12.4
	}
	state.Traffic.Items = append(state.Traffic.Items, item)
}

func endpoints(of metav1.ObjectMeta, size Size, n int, ready bool) discoveryv1.EndpointSlice {
	slice := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name, Labels: map[string]string{discoveryv1.LabelServiceName: of.Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range 2 {
		node := fmt.Sprintf("node-%03d", (n+i)%size.Nodes+1)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("198.18.%d.%d", 100+n/250%100, (2*n+i)%250+1)}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: of.Namespace, Name: fmt.Sprintf("%s-7d9c5-%c%c", of.Name, 'a'+n%26, 'a'+i)},
		})
	}
	return slice
}
