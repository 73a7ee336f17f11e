// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
)

// All connections of a client reach one pod, via any ingress node.
func TestAffinity(t *testing.T) {
	n := newNetwork(t)
	for _, pod := range testPods {
		serve(t, pod)
	}
	for _, node := range n.nodes {
		want := n.state(node)
		for key, frontend := range want.Frontends {
			frontend.Affinity = 10800
			want.Frontends[key] = frontend
		}
		n.start(t, node, want)
	}
	n.checkAffinity(t, clusterPort)
}

func (n *network) checkAffinity(t *testing.T, port uint16) {
	t.Helper()
	for _, vip := range []netip.Addr{vip4, vip6} {
		t.Run(vip.String(), func(t *testing.T) {
			to := netip.AddrPortFrom(vip, port)
			tcp, udp := map[string]int{}, map[string]int{}
			for range 30 {
				s := connect(t, to)
				tcp[s.pod]++
				if err := s.exchange(1000, 1000); err != nil {
					t.Fatal(err)
				}
				s.Close()
				udp[askUDP(t, to, 1000)]++
			}
			if len(tcp) != 1 || len(udp) != 1 {
				t.Errorf("TCP served by %v, UDP by %v; want one pod each", tcp, udp)
			}
		})
	}
	for _, node := range n.nodes {
		checkNoDrops(t, node)
	}
}

// As above for policy Local, with both nodes announcing the VIP. The pods see the client's address, which
// connect checks.
func TestAffinityUnderPolicyLocal(t *testing.T) {
	n := newNetwork(t)
	for _, pod := range testPods {
		serve(t, pod)
	}
	limits := smallConfig("").Limits
	for _, node := range n.nodes {
		empty := forwarding.NewState()
		want, problems := plan.NewPlanner(empty).Plan(empty, n.affineModel(node), limits)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		n.start(t, node, want)
	}
	n.checkAffinity(t, localPort)
}

func (n *network) affineModel(self *node) *model.Model {
	m := &model.Model{
		Self: forwarding.Self{ID: self.id, IPv4: self.addr.IPv4, IPv6: self.addr.IPv6},
		VIPs: []model.VIP{{Address: vip4}, {Address: vip6}},
	}
	weights := map[forwarding.NodeID]uint32{}
	for _, node := range n.nodes {
		m.Nodes = append(m.Nodes, model.Node{Name: node.name, ID: node.id, Node: node.addr})
		weights[node.id] = uint32(len(node.pods))
	}
	for _, vip := range m.VIPs {
		var endpoints []forwarding.Endpoint
		for _, pod := range self.pods {
			address := pod.ipv6
			if vip.Address.Is4() {
				address = pod.ipv4
			}
			endpoints = append(endpoints, forwarding.Endpoint{Address: address, Port: podPort})
		}
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			m.Frontends = append(m.Frontends, &model.Frontend{
				Key:     forwarding.FrontendKey{VIP: vip.Address, Port: localPort, Protocol: protocol},
				Service: model.ServiceName{Namespace: "default", Name: "affine"},
				Local:   true, Affinity: 10800, Weights: weights, Endpoints: endpoints,
			})
		}
	}
	return m
}
