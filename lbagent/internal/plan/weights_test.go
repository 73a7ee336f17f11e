// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

type layout []int

// routed returns the snapshot of a node with a VIPRoute from a VIP's port to the weighted Services; without
// weights, the port belongs to the first Service.
func routed(node string, services []layout, weights ...int32) *model.Snapshot {
	s := &model.Snapshot{NodeName: node}
	class := millracev1beta1.Class
	gateway := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "service0"}}
	gateway.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, Ports: []corev1.ServicePort{{Port: 80}}}
	route := &millracev1beta1.VIPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "route"}}
	route.Spec = millracev1beta1.VIPRouteSpec{ServiceName: "service0", Ports: []millracev1beta1.VIPRoutePort{{Port: 80}}}
	for n := range len(services[0]) {
		lbNode := &millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", n+1)}}
		lbNode.Spec = millracev1beta1.LBNodeSpec{ID: int32(n + 1), Addresses: []string{fmt.Sprintf("198.51.100.%d", n+1)}}
		lbNode.Status = millracev1beta1.LBNodeStatus{BootID: "b", ServingBootID: "b"}
		s.LBNodes = append(s.LBNodes, lbNode)
	}
	for i, on := range services {
		name := fmt.Sprintf("service%d", i)
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		service.Spec.Ports = []corev1.ServicePort{{Port: 80}}
		if i == 0 {
			service = gateway
		}
		s.Services = append(s.Services, service)
		s.EndpointSlices = append(s.EndpointSlices, sliceOf(name, i, on))
	}
	for i, weight := range weights {
		backend := millracev1beta1.VIPRouteBackend{Name: fmt.Sprintf("service%d", i), Port: 80, Weight: weight}
		route.Spec.Ports[0].Backends = append(route.Spec.Ports[0].Backends, backend)
	}
	if len(weights) > 0 {
		s.Routes = append(s.Routes, route)
	}
	vip := &millracev1beta1.VIP{ObjectMeta: metav1.ObjectMeta{Name: "203.0.113.1"}}
	vip.Spec = millracev1beta1.VIPSpec{Address: "203.0.113.1", Claims: []millracev1beta1.VIPClaim{{Namespace: "default", Name: "service0"}}}
	s.VIPs = append(s.VIPs, vip)
	return s
}

func sliceOf(service string, number int, on layout) *discoveryv1.EndpointSlice {
	port, unnamed := int32(8080), ""
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service},
	}}
	slice.AddressType = discoveryv1.AddressTypeIPv4
	slice.Ports = []discoveryv1.EndpointPort{{Name: &unnamed, Port: &port}}
	for n, count := range on {
		node := fmt.Sprintf("node%d", n+1)
		for i := range count {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("198.18.%d.%d", n+1, 50*number+i)}, NodeName: &node,
			})
		}
	}
	return slice
}

func planned(services []layout, weights ...int32) map[forwarding.NodeID]*forwarding.State {
	states := map[forwarding.NodeID]*forwarding.State{}
	for n := range len(services[0]) {
		have := forwarding.NewState()
		m := model.Build(routed(fmt.Sprintf("node%d", n+1), services, weights...))
		states[forwarding.NodeID(n+1)], _ = NewPlanner(have).Plan(have, m, ample)
	}
	return states
}

// shares returns the fraction of flows of each Service by the tables; -1 stands for refused flows.
func shares(states map[forwarding.NodeID]*forwarding.State) map[int]float64 {
	parts := map[int]float64{}
	ingress := states[1]
	for _, row := range *ingress.NodeTables[ingress.Frontends[key(1)].Table] {
		at := states[row.Primary]
		for _, id := range at.EndpointTables[at.Frontends[key(1)].Endpoints] {
			service := -1
			if id != forwarding.RefusedEndpoint {
				service = int(at.Endpoints[id].Address.As4()[3]) / 50
			}
			parts[service] += 1.0 / forwarding.Rows / forwarding.EndpointRows
		}
	}
	return parts
}

// Each Service receives its weight of the flows regardless of the location of its endpoints; the share of
// Services without endpoints is refused.
func TestServiceWeights(t *testing.T) {
	for name, test := range map[string]struct {
		services []layout
		weights  []int32
		want     map[int]float64
	}{
		"one node":                       {[]layout{{3}, {1}}, []int32{90, 10}, map[int]float64{0: .9, 1: .1}},
		"one node per backend":           {[]layout{{1, 0}, {0, 1}}, []int32{90, 10}, map[int]float64{0: .9, 1: .1}},
		"few and many endpoints":         {[]layout{{1, 0, 0}, {10, 10, 10}}, []int32{90, 10}, map[int]float64{0: .9, 1: .1}},
		"many and few endpoints":         {[]layout{{5, 9, 2, 7}, {0, 0, 1, 0}}, []int32{90, 10}, map[int]float64{0: .9, 1: .1}},
		"three":                          {[]layout{{1, 2}, {3, 1}, {2, 0}}, []int32{1, 2, 5}, map[int]float64{0: .125, 1: .25, 2: .625}},
		"large weights":                  {[]layout{{2, 1}, {1, 1}}, []int32{1_000_000, 500_000}, map[int]float64{0: .6667, 1: .3333}},
		"zero weight":                    {[]layout{{2, 1}, {1, 1}}, []int32{1, 0}, map[int]float64{0: 1}},
		"one backend without endpoints":  {[]layout{{2, 1}, {0, 0}}, []int32{75, 25}, map[int]float64{0: .75, -1: .25}},
		"two backends without endpoints": {[]layout{{2, 1, 4}, {0, 0, 0}, {0, 0, 0}}, []int32{1, 8, 1}, map[int]float64{0: .1, -1: .9}},
		"several backends, one refused":  {[]layout{{2, 1}, {0, 3}, {0, 0}}, []int32{60, 20, 20}, map[int]float64{0: .6, 1: .2, -1: .2}},
	} {
		t.Run(name, func(t *testing.T) {
			got := shares(planned(test.services, test.weights...))
			for service := -1; service < 3; service++ {
				if off := math.Abs(got[service] - test.want[service]); off > .015 {
					t.Errorf("Service %d receives %.4f of the flows, want %.4f", service, got[service], test.want[service])
				}
			}
		})
	}
}

// TestEqualWeightsMoveNoRow verifies that routes with equal weights of all endpoints have the same rows,
// regardless of the division into backends.
func TestEqualWeightsMoveNoRow(t *testing.T) {
	on := layout{3, 1, 0, 2}
	plain := planned([]layout{on}, 1)
	for name, states := range map[string]map[forwarding.NodeID]*forwarding.State{
		"one backend, others with weight zero": planned([]layout{on, {1, 1, 1, 1}}, 7, 0),
		"one backend, large weight":            planned([]layout{on}, 1_000_000),
		"one backend and a refused one":        planned([]layout{on, {0, 0, 0, 0}}, 1, 1),
		"equal weights":                        planned([]layout{{3, 0, 0, 0}, {0, 1, 0, 2}}, 1, 1),
		"as many endpoints as shares":          planned([]layout{{1, 0, 0, 0}, {2, 1, 0, 2}}, 20, 100),
	} {
		for id, state := range states {
			got, want := state.Frontends[key(1)], plain[id].Frontends[key(1)]
			if !state.NodeTables[got.Table].Equal(plain[id].NodeTables[want.Table]) {
				t.Errorf("%s: node %d has different node rows", name, id)
			}
			if name == "one backend, large weight" && got.Endpoints != 0 &&
				*state.EndpointTables[got.Endpoints] != *plain[id].EndpointTables[want.Endpoints] {
				t.Errorf("%s: node %d has different endpoint rows", name, id)
			}
		}
	}
}

// Changed weights retain all endpoint ids, even with weight zero, and moved rows retain their former owner.
func TestChangedWeightsKeepConnections(t *testing.T) {
	services := []layout{{2, 1}, {1, 2}}
	have := forwarding.NewState()
	p := NewPlanner(have)
	have, _ = advance(t, p, have, model.Build(routed("node1", services, 90, 10)), ample)
	for _, weights := range [][]int32{{10, 90}, {0, 1}, {1, 0}, {50, 50}} {
		next, problems := advance(t, p, have, model.Build(routed("node1", services, weights...)), ample)
		if len(problems) > 0 {
			t.Fatalf("problems = %v, want none", problems)
		}
		if len(next.Endpoints) != 3 {
			t.Errorf("weights %v: %d endpoints, want all 3 of the node", weights, len(next.Endpoints))
		}
		for id, endpoint := range have.Endpoints {
			if next.Endpoints[id] != endpoint {
				t.Errorf("weights %v: id %d changed from %v to %v", weights, id, endpoint, next.Endpoints[id])
			}
		}
		before, after := have.Frontends[key(1)], next.Frontends[key(1)]
		if before != after {
			t.Errorf("weights %v: the frontend changed from %+v to %+v", weights, before, after)
		}
		for i, row := range *next.NodeTables[after.Table] {
			if old := (*have.NodeTables[before.Table])[i]; row.Primary != old.Primary && row.Chain[0] != old.Primary {
				t.Fatalf("weights %v: row %d = %+v, previously %+v", weights, i, row, old)
			}
		}
		have = next
	}
}
