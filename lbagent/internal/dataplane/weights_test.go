// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
)

const routedPort = 5432

// routedWorld returns the objects of a VIPRoute: blue has pod1 and pod2, green has pod3, invalid no pod.
func (n *network) routedWorld(node *node, blue, green, invalid int32) *model.Snapshot {
	class := millracev1beta1.Class
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	port := corev1.ServicePort{Port: routedPort}
	s := &model.Snapshot{
		NodeName: node.name,
		Services: []*corev1.Service{
			{ObjectMeta: named("gateway"), Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, Ports: []corev1.ServicePort{port},
			}},
			{ObjectMeta: named("blue"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{port}}},
			{ObjectMeta: named("green"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{port}}},
		},
		Routes: []*millracev1beta1.VIPRoute{{ObjectMeta: named("gateway"), Spec: millracev1beta1.VIPRouteSpec{
			ServiceName: "gateway",
			Ports: []millracev1beta1.VIPRoutePort{{Port: routedPort, Backends: []millracev1beta1.VIPRouteBackend{
				{Name: "blue", Port: routedPort, Weight: blue}, {Name: "green", Port: routedPort, Weight: green},
				{Invalid: true, Weight: invalid},
			}}},
		}}},
	}
	for _, vip := range []netip.Addr{vip4, vip6} {
		claims := []millracev1beta1.VIPClaim{{Namespace: "default", Name: "gateway"}}
		s.VIPs = append(s.VIPs, &millracev1beta1.VIP{
			ObjectMeta: metav1.ObjectMeta{Name: millracev1beta1.VIPName(vip)},
			Spec:       millracev1beta1.VIPSpec{Address: vip.String(), Claims: claims},
		})
	}
	for _, node := range n.nodes {
		s.LBNodes = append(s.LBNodes, &millracev1beta1.LBNode{
			ObjectMeta: metav1.ObjectMeta{Name: node.name},
			Spec:       millracev1beta1.LBNodeSpec{ID: int32(node.id), Addresses: []string{node.addr.IPv4.String(), node.addr.IPv6.String()}},
			Status:     millracev1beta1.LBNodeStatus{BootID: "b", ServingBootID: "b"},
		})
		for _, pod := range node.pods {
			s.EndpointSlices = append(s.EndpointSlices, slicesOf(node, pod)...)
		}
	}
	return s
}

func backendOf(pod string) string {
	if pod == "pod3" {
		return "green"
	}
	return "blue"
}

func slicesOf(node *node, pod pod) []*discoveryv1.EndpointSlice {
	number, unnamed := int32(podPort), ""
	slice := func(kind discoveryv1.AddressType, address netip.Addr) *discoveryv1.EndpointSlice {
		service := backendOf(pod.name)
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprintf("%s-%s-%s", service, pod.name, kind),
				Labels: map[string]string{discoveryv1.LabelServiceName: service},
			},
			AddressType: kind,
			Ports:       []discoveryv1.EndpointPort{{Name: &unnamed, Port: &number}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address.String()}, NodeName: &node.name}},
		}
	}
	return []*discoveryv1.EndpointSlice{slice(discoveryv1.AddressTypeIPv4, pod.ipv4), slice(discoveryv1.AddressTypeIPv6, pod.ipv6)}
}

type routedNode struct {
	*node
	planner *plan.Planner
	have    *forwarding.State
}

func (r *routedNode) set(t *testing.T, n *network, blue, green, invalid int32) {
	t.Helper()
	m := model.Build(n.routedWorld(r.node, blue, green, invalid))
	want, problems := r.planner.Plan(r.have, m, r.cfg.Limits)
	if len(problems) > 0 || len(m.Problems) > 0 {
		t.Fatalf("%s: problems %v and %v", r.name, problems, m.Problems)
	}
	apply(t, r.dataplane, forwarding.Diff(r.have, want)...)
	r.have = want
}

// talliedPort is the first port of a tally, above those of other tests (nextPort).
const talliedPort = 45_000

// tally opens connections to the VIP, each from its own port, and counts them by Service, or "refused".
func tally(t *testing.T, vip netip.Addr, connections int) map[string]int {
	t.Helper()
	counts := map[string]int{}
	inNamespace(t, "client", func() error {
		for i := range connections {
			to, err := askTCP(t.Context(), talliedPort+i, netip.AddrPortFrom(vip, routedPort))
			if err != nil {
				return err
			}
			counts[to]++
		}
		return nil
	})
	return counts
}

func askTCP(ctx context.Context, port int, to netip.AddrPort) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{Port: port}}
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "refused", nil
	}
	if err != nil {
		return "", err
	}
	defer conn.Close()
	// Without TIME_WAIT at either end, because the ports are reused.
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		return "", err
	}
	var pod, client string
	if _, err := fmt.Fscan(conn, &pod, &client); err != nil {
		return "", fmt.Errorf("greeting of %s: %w", to, err)
	}
	return backendOf(pod), nil
}

func checkParts(t *testing.T, what string, counts map[string]int, within float64, want map[string]float64) {
	t.Helper()
	total := 0
	for _, count := range counts {
		total += count
	}
	for _, name := range []string{"blue", "green", "refused"} {
		if part := float64(counts[name]) / float64(total); math.Abs(part-want[name]) > within {
			t.Errorf("%s: %s has %.4f of %d connections, want %.4f", what, name, part, total, want[name])
		}
	}
	t.Logf("%s: %v", what, counts)
}

// A VIPRoute distributes connections by weight within two percent. Established connections stay when weights
// change, even to zero.
func TestRoutedPath(t *testing.T) {
	n := newNetwork(t)
	for _, pod := range testPods {
		serve(t, pod)
	}
	var nodes []*routedNode
	for _, node := range n.nodes {
		n.start(t, node, forwarding.NewState())
		nodes = append(nodes, &routedNode{node: node, have: forwarding.NewState(), planner: plan.NewPlanner(forwarding.NewState())})
	}
	set := func(blue, green, invalid int32) {
		for _, node := range nodes {
			node.set(t, n, blue, green, invalid)
		}
	}
	set(90, 10, 0)
	checkParts(t, "90/10", tally(t, vip4, 10_000), .02, map[string]float64{"blue": .9, "green": .1})

	set(50, 50, 0)
	var sessions []*session
	for range 20 {
		for _, vip := range []netip.Addr{vip4, vip6} {
			sessions = append(sessions, connect(t, netip.AddrPortFrom(vip, routedPort)))
		}
	}
	set(10, 90, 0)
	exchangeAll(t, sessions)
	set(0, 1, 0)
	exchangeAll(t, sessions)
	set(1, 0, 1)
	exchangeAll(t, sessions)
	// Rejections are limited to a hundred per second.
	checkParts(t, "half is refused", tally(t, vip6, 200), .1, map[string]float64{"blue": .5, "refused": .5})
	exchangeAll(t, sessions)
}
