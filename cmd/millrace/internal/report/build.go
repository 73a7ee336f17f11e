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

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// Build makes the report.
func Build(in *Input) *View {
	look := newLookup(in)
	view := &View{VIPs: []VIP{}, Nodes: []Node{}, Problems: []Problem{}}
	for i := range in.VIPs {
		view.VIPs = append(view.VIPs, look.vip(&in.VIPs[i]))
	}
	slices.SortFunc(view.VIPs, func(a, b VIP) int { return compareAddresses(a.Address, b.Address) })
	for _, node := range look.lbnodes {
		view.Nodes = append(view.Nodes, look.node(node))
	}

	view.Problems = append(view.Problems, look.installation()...)
	view.Problems = append(view.Problems, look.nodes(view.Nodes)...)
	view.Problems = append(view.Problems, configuration(in)...)
	view.Problems = append(view.Problems, look.waiting()...)
	view.Problems = append(view.Problems, look.unserved(view.VIPs)...)
	view.Next = next(in)
	return view
}

// family keys the endpoints of a Service by address type.
type family struct {
	service types.NamespacedName
	kind    discoveryv1.AddressType
}

type endpoints struct{ ready, total int }

// lookup is the input, by what it is asked for.
type lookup struct {
	in        *Input
	services  map[types.NamespacedName]*corev1.Service
	endpoints map[family]endpoints
	vips      map[string]*millracev1alpha1.VIP
	// lbnodes are sorted by name; agents are the agents' pods by node.
	lbnodes []*millracev1alpha1.LBNode
	agents  map[string]*corev1.Pod
}

func newLookup(in *Input) *lookup {
	look := &lookup{
		in:        in,
		services:  make(map[types.NamespacedName]*corev1.Service, len(in.Services)),
		endpoints: countEndpoints(in.EndpointSlices),
		vips:      make(map[string]*millracev1alpha1.VIP, len(in.VIPs)),
		agents:    AgentPods(in.Pods),
	}
	for i := range in.Services {
		service := &in.Services[i]
		look.services[types.NamespacedName{Namespace: service.Namespace, Name: service.Name}] = service
	}
	for i := range in.VIPs {
		look.vips[in.VIPs[i].Spec.Address] = &in.VIPs[i]
	}
	for i := range in.LBNodes {
		look.lbnodes = append(look.lbnodes, &in.LBNodes[i])
	}
	slices.SortFunc(look.lbnodes, func(a, b *millracev1alpha1.LBNode) int { return CompareNames(a.Name, b.Name) })
	return look
}

// countEndpoints counts each address of a Service once, in however many
// slices it is. An absent condition ready means true (EndpointConditions in
// discovery.k8s.io/v1).
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

func (l *lookup) vip(vip *millracev1alpha1.VIP) VIP {
	out := VIP{Address: vip.Spec.Address, Pool: vip.Spec.Pool}
	kind := discoveryv1.AddressTypeIPv4
	if strings.Contains(vip.Spec.Address, ":") {
		kind = discoveryv1.AddressTypeIPv6
	}
	for _, claim := range vip.Spec.Claims {
		service := Service{Namespace: claim.Namespace, Name: claim.Name}
		if found := l.claimed(claim); found != nil {
			service.TrafficPolicy = string(found.Spec.ExternalTrafficPolicy)
			if service.TrafficPolicy == "" {
				service.TrafficPolicy = string(corev1.ServiceExternalTrafficPolicyCluster)
			}
			count := l.endpoints[family{service: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, kind: kind}]
			service.Ready, service.Total = count.ready, count.total
			service.Ports = claimedPorts(claim, found, len(vip.Spec.Claims) > 1)
		}
		out.Services = append(out.Services, service)
	}
	slices.SortFunc(out.Services, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, node := range l.lbnodes {
		for _, status := range node.Status.VIPs {
			if status.Address != vip.Spec.Address {
				continue
			}
			out.Programmed++
			if len(status.AnnouncedTo) > 0 {
				out.AnnouncedBy = append(out.AnnouncedBy, Announcement{Node: node.Name, Peers: slices.Sorted(slices.Values(status.AnnouncedTo))})
			} else {
				out.WithheldBy = append(out.WithheldBy, Withheld{Node: node.Name, Reason: status.Reason, Message: status.Message})
			}
		}
	}
	return out
}

// claimedPorts returns the ports that a claim lists. That of a Service which has
// the VIP for itself may list none, for all of its ports.
func claimedPorts(claim millracev1alpha1.VIPClaim, service *corev1.Service, shared bool) []string {
	listed := claim.Ports
	if len(listed) == 0 && !shared {
		for _, port := range service.Spec.Ports {
			listed = append(listed, millracev1alpha1.ClaimedPort{Port: port.Port, Protocol: port.Protocol})
		}
	}
	var ports []string
	for _, port := range listed {
		ports = append(ports, fmt.Sprintf("%d/%s", port.Port, cmp.Or(port.Protocol, corev1.ProtocolTCP)))
	}
	return ports
}

// claimed returns the Service of a claim, nil where it is gone or another one
// has its name now.
func (l *lookup) claimed(claim millracev1alpha1.VIPClaim) *corev1.Service {
	service := l.services[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}]
	if service == nil || claim.UID != "" && claim.UID != string(service.UID) {
		return nil
	}
	return service
}

func (l *lookup) node(node *millracev1alpha1.LBNode) Node {
	out := Node{
		Name:       node.Name,
		ID:         node.Spec.ID,
		Addresses:  node.Spec.Addresses,
		Zone:       node.Spec.Zone,
		Ready:      "Unknown",
		Agent:      agentState(l.agents[node.Name]),
		Version:    node.Status.Version,
		Programmed: len(node.Status.VIPs),
		Announced:  int(node.Status.AnnouncedVIPs),
	}
	if condition := meta.FindStatusCondition(node.Status.Conditions, millracev1alpha1.ConditionReady); condition != nil {
		out.Ready = string(condition.Status)
	}
	for _, uplink := range node.Status.Interfaces {
		out.Interfaces = append(out.Interfaces, Interface{Name: uplink.Name, XDPMode: string(uplink.XDPMode)})
	}
	slices.SortFunc(out.Interfaces, func(a, b Interface) int { return cmp.Compare(a.Name, b.Name) })
	for _, session := range node.Status.Sessions {
		out.Sessions = append(out.Sessions, Session{
			Peer: session.Peer, Address: session.Address, State: string(session.State), Message: session.Message,
		})
	}
	slices.SortFunc(out.Sessions, func(a, b Session) int { return cmp.Compare(a.Peer, b.Peer) })
	return out
}

// compareAddresses sorts IPv4 before IPv6, each by number; what is no address
// comes first.
func compareAddresses(a, b string) int {
	left, _ := netip.ParseAddr(a)
	right, _ := netip.ParseAddr(b)
	return cmp.Or(left.Compare(right), cmp.Compare(a, b))
}

// CompareNames sorts node2 before node10: the names of nodes are most often
// numbered.
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
