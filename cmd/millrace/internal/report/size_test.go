// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/complexity"
)

// sized returns VIPs of Services with an endpoint, announced by all nodes except every tenth (policy
// Local).
func sized(nodes, vips int) *Input {
	in := &Input{
		Namespace: "millrace-system", Peers: make([]millracev1beta1.LBPeer, 1), Advertisements: make([]millracev1beta1.VIPAdvertisement, 1),
		Agents: Agents{Responses: map[string]*consoleapi.VIPs{}},
	}
	var everywhere, local []netip.Addr
	for n := range vips {
		address := netip.AddrFrom4([4]byte{203, byte(n >> 16), byte(n >> 8), byte(n)})
		name := fmt.Sprintf("web-%d", n)
		service := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		service.Spec.Type = corev1.ServiceTypeLoadBalancer
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address.String()}}
		if n%10 == 0 {
			service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			local = append(local, address)
		} else {
			everywhere = append(everywhere, address)
		}
		in.Services = append(in.Services, service)
		in.EndpointSlices = append(in.EndpointSlices, discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"198.18.0.1"}}},
		})
		in.VIPs = append(in.VIPs, millracev1beta1.VIP{
			ObjectMeta: metav1.ObjectMeta{Name: address.String()},
			Spec:       millracev1beta1.VIPSpec{Address: address.String(), Claims: []millracev1beta1.VIPClaim{{Namespace: "ns", Name: name}}},
		})
	}
	for n := range nodes {
		name := fmt.Sprintf("node%d", n)
		in.LBNodes = append(in.LBNodes, millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: name}})
		in.LBNodeReports = append(in.LBNodeReports, millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: name}})
		in.Agents.Responses[name] = &consoleapi.VIPs{Node: name, Groups: []consoleapi.VIPGroup{
			{Peers: []string{"router1"}, Addresses: everywhere},
			{Reason: millracev1beta1.ReasonNoLocalEndpoint, Message: "no endpoint here", Addresses: local},
		}}
	}
	return in
}

// The cost of a report is linear in its VIPs and nodes.
func TestBuildIsLinear(t *testing.T) {
	counter := complexity.New(t, ".")
	for name, input := range map[string]func(count int) *Input{
		"VIPs":  func(count int) *Input { return sized(20, count) },
		"nodes": func(count int) *Input { return sized(count, 200) },
	} {
		t.Run(name, func(t *testing.T) {
			counter.ExpectLinear(t, 50, 8, func(count int) { Build(input(count)) })
		})
	}
}

func TestSized(t *testing.T) {
	view := Build(sized(3, 20))
	local, spread := view.VIPs[0], view.VIPs[1]
	if len(local.AnnouncedBy) != 0 || len(local.WithheldBy) != 1 || len(local.WithheldBy[0].Nodes) != 3 {
		t.Errorf("the first VIP is %+v", local)
	}
	if spread.Announcers() != 3 || spread.Programmed != 3 || !slices.Equal(spread.AnnouncedBy[0].Nodes, []string{"node0", "node1", "node2"}) {
		t.Errorf("the second VIP is %+v", spread)
	}
}
