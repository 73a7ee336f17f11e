// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Build computes the report.
func Build(in *Input) *View {
	l := newLookup(in)
	view := &View{VIPs: make([]VIP, 0, len(in.VIPs)), Nodes: []Node{}, Problems: []Problem{}, Answered: len(in.Agents.Responses)}
	for i := range in.VIPs {
		view.VIPs = append(view.VIPs, l.vip(&in.VIPs[i]))
	}
	slices.SortFunc(view.VIPs, func(a, b VIP) int { return compareAddresses(a.Address, b.Address) })
	agreement := l.announced(view.VIPs)
	for _, node := range l.nodes {
		view.Nodes = append(view.Nodes, l.node(node))
	}

	view.Problems = append(view.Problems, l.installation()...)
	view.Problems = append(view.Problems, l.nodeProblems(view.Nodes, agreement)...)
	view.Problems = append(view.Problems, configuration(in)...)
	view.Problems = append(view.Problems, l.waiting()...)
	view.Problems = append(view.Problems, l.certificates()...)
	view.Problems = append(view.Problems, l.unserved(view.VIPs)...)
	view.Problems = append(view.Problems, l.announcedByOneNode(view.VIPs)...)
	view.Remarks = remarks(in)
	view.Next, view.Sole = next(in), in.Sole
	view.Unassigned = l.unassigned()
	return view
}

type family struct {
	service types.NamespacedName
	kind    discoveryv1.AddressType
}

type endpoints struct{ ready, total int }

type lookup struct {
	in        *Input
	services  map[types.NamespacedName]*corev1.Service
	endpoints map[family]endpoints
	vips      map[string]*millracev1beta1.VIP
	routes    map[routedPort][]millracev1beta1.VIPRouteBackend
	// nodes are sorted by name; agents are the agents' pods by node.
	nodes  []nodeObjects
	agents map[string]*corev1.Pod
	// nodesOf counts the nodes that announce a Service.
	nodesOf map[types.NamespacedName]livev1alpha1.NodeCount
}

type nodeObjects struct {
	lbNode *millracev1beta1.LBNode
	report *millracev1beta1.LBNodeReport
}

func (n nodeObjects) name() string { return n.lbNode.Name }

func newLookup(in *Input) *lookup {
	l := &lookup{
		in:        in,
		services:  make(map[types.NamespacedName]*corev1.Service, len(in.Services)),
		endpoints: countEndpoints(in.EndpointSlices),
		vips:      make(map[string]*millracev1beta1.VIP, len(in.VIPs)),
		routes:    routedPorts(in.Routes),
		agents:    AgentPods(in.Pods),
		nodesOf:   countNodes(in.Traffic),
	}
	for i := range in.Services {
		service := &in.Services[i]
		l.services[types.NamespacedName{Namespace: service.Namespace, Name: service.Name}] = service
	}
	for i := range in.VIPs {
		l.vips[in.VIPs[i].Spec.Address] = &in.VIPs[i]
	}
	reports := make(map[string]*millracev1beta1.LBNodeReport, len(in.LBNodeReports))
	for i := range in.LBNodeReports {
		reports[in.LBNodeReports[i].Name] = &in.LBNodeReports[i]
	}
	for i := range in.LBNodes {
		node := nodeObjects{lbNode: &in.LBNodes[i], report: reports[in.LBNodes[i].Name]}
		if node.report == nil {
			node.report = &millracev1beta1.LBNodeReport{}
		}
		l.nodes = append(l.nodes, node)
	}
	slices.SortFunc(l.nodes, func(a, b nodeObjects) int { return CompareNames(a.name(), b.name()) })
	return l
}

// countEndpoints counts each address once. A missing condition ready means true (discovery.k8s.io/v1).
func countEndpoints(endpointSlices []discoveryv1.EndpointSlice) map[family]endpoints {
	addresses := map[family]map[string]bool{}
	for i := range endpointSlices {
		slice := &endpointSlices[i]
		name := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
		key := family{service: name, kind: slice.AddressType}
		if addresses[key] == nil {
			addresses[key] = map[string]bool{}
		}
		for _, endpoint := range slice.Endpoints {
			ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
			terminating := endpoint.Conditions.Terminating != nil && *endpoint.Conditions.Terminating
			if len(endpoint.Addresses) == 0 || terminating {
				continue
			}
			address := endpoint.Addresses[0]
			addresses[key][address] = addresses[key][address] || ready
		}
	}
	counts := make(map[family]endpoints, len(addresses))
	for key, readiness := range addresses {
		count := endpoints{total: len(readiness)}
		for _, ready := range readiness {
			if ready {
				count.ready++
			}
		}
		counts[key] = count
	}
	return counts
}

func (l *lookup) vip(vip *millracev1beta1.VIP) VIP {
	out := VIP{Object: vip.Name, Allocation: Allocation{Address: vip.Spec.Address, Pool: vip.Spec.Pool}}
	kind := discoveryv1.AddressTypeIPv4
	if strings.Contains(vip.Spec.Address, ":") {
		kind = discoveryv1.AddressTypeIPv6
	}
	for _, claim := range vip.Spec.Claims {
		service := Service{Namespace: claim.Namespace, Name: claim.Name}
		if found := l.claimed(claim); found != nil {
			out.NotAnnounced = cmp.Or(out.NotAnnounced, notAnnounced(vip, found))
			service.TrafficPolicy = string(found.Spec.ExternalTrafficPolicy)
			if service.TrafficPolicy == "" {
				service.TrafficPolicy = string(corev1.ServiceExternalTrafficPolicyCluster)
			}
			service.Backends = l.backends(found, kind)
			service.Ready, service.Total = l.count(found, service.Backends, kind)
			service.Announcing, service.Nodes = l.announcing(claim)
			service.Ports = claimedPorts(claim, found, len(vip.Spec.Claims) > 1)
		}
		out.Services = append(out.Services, service)
	}
	slices.SortFunc(out.Services, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// claimedPorts returns all of the Service's ports for an unshared claim without ports.
func claimedPorts(claim millracev1beta1.VIPClaim, service *corev1.Service, shared bool) []string {
	listed := claim.Ports
	if len(listed) == 0 && !shared {
		for _, port := range service.Spec.Ports {
			listed = append(listed, millracev1beta1.ClaimedPort{Port: port.Port, Protocol: port.Protocol})
		}
	}
	var ports []string
	for _, port := range listed {
		ports = append(ports, fmt.Sprintf("%d/%s", port.Port, cmp.Or(port.Protocol, corev1.ProtocolTCP)))
	}
	return ports
}

// claimed returns nil for a Service that was deleted or replaced.
func (l *lookup) claimed(claim millracev1beta1.VIPClaim) *corev1.Service {
	service := l.services[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}]
	switch {
	case service == nil:
		return nil
	case claim.UID == "" && service.Spec.Type != corev1.ServiceTypeLoadBalancer:
		// The address is reserved until the Service is of type LoadBalancer.
		return nil
	case claim.UID != "" && claim.UID != string(service.UID):
		return nil
	}
	return service
}

func (l *lookup) node(node nodeObjects) Node {
	status := &node.report.Status
	out := Node{
		Name:        node.name(),
		ID:          node.lbNode.Spec.ID,
		Addresses:   node.lbNode.Spec.Addresses,
		Zone:        node.lbNode.Spec.Zone,
		Ready:       "Unknown",
		DrainReason: string(node.lbNode.Spec.DrainReason),
		Agent:       agentState(l.agents[node.name()]),
		Version:     status.Version,
		Programmed:  int(status.VIPs.Programmed),
		Announced:   int(status.VIPs.Announced),
	}
	if l.in.lacks("Pods") {
		out.Agent = AgentUnknown
	}
	if condition := meta.FindStatusCondition(status.Conditions, millracev1beta1.ConditionReady); condition != nil {
		out.Ready = string(condition.Status)
	}
	for _, uplink := range status.Interfaces {
		out.Interfaces = append(out.Interfaces, Interface{Name: uplink.Name, XDPMode: string(uplink.XDPMode), Message: uplink.Message})
	}
	slices.SortFunc(out.Interfaces, func(a, b Interface) int { return cmp.Compare(a.Name, b.Name) })
	for _, session := range status.Sessions {
		out.Sessions = append(out.Sessions, Session{
			Peer: session.Peer, Address: session.Address, State: string(session.State), Message: session.Message,
		})
	}
	slices.SortFunc(out.Sessions, func(a, b Session) int { return cmp.Compare(a.Peer, b.Peer) })
	return out
}

// compareAddresses sorts IPv4 before IPv6, each numerically; invalid addresses come first.
func compareAddresses(a, b string) int {
	left, _ := netip.ParseAddr(a)
	right, _ := netip.ParseAddr(b)
	return cmp.Or(left.Compare(right), cmp.Compare(a, b))
}

// CompareNames sorts node2 before node10, because names of nodes usually end in numbers.
func CompareNames(a, b string) int {
	prefixA, numberA := splitNumber(a)
	prefixB, numberB := splitNumber(b)
	return cmp.Or(
		cmp.Compare(prefixA, prefixB),
		cmp.Compare(len(numberA), len(numberB)),
		cmp.Compare(numberA, numberB),
		cmp.Compare(a, b),
	)
}

func splitNumber(name string) (prefix, number string) {
	prefix = strings.TrimRight(name, "0123456789")
	return prefix, strings.TrimLeft(name[len(prefix):], "0")
}
