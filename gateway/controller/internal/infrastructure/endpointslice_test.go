// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// slice returns a slice of port "db"; "198.18.0.1!" is not ready.
func slice(family discoveryv1.AddressType, port int32, endpoints ...string) *discoveryv1.EndpointSlice {
	name, other, tcp, udp := "db", "metrics", corev1.ProtocolTCP, corev1.ProtocolUDP
	made := &discoveryv1.EndpointSlice{AddressType: family, Ports: []discoveryv1.EndpointPort{
		{Name: &other, Port: new(port + 1), Protocol: &tcp}, {Name: &name, Port: new(port + 2), Protocol: &udp},
		{Name: &name, Port: &port, Protocol: &tcp}, {Name: &name, Protocol: &tcp},
	}}
	for _, text := range endpoints {
		address, isNotReady := strings.CutSuffix(text, "!")
		ready, node := !isNotReady, "node1"
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address, "198.18.0.99"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, NodeName: &node,
		})
	}
	return made
}

func TestEndpointSlices(t *testing.T) {
	const four, six = discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6
	services := map[string][]*discoveryv1.EndpointSlice{
		"one": {slice(four, 5432, "198.18.0.2", "198.18.0.1!"), slice(four, 5432, "198.18.0.1"), slice(six, 5432, "2001:db8::1")},
		"two": {slice(four, 15432, "198.18.0.3"), slice(discoveryv1.AddressTypeFQDN, 5432, "db.example.com"), {AddressType: four}},
		"off": {slice(four, 5432, "198.18.0.4")},
	}
	backends := func(of model.ServicePort, protocol corev1.Protocol) (string, []*discoveryv1.EndpointSlice, bool, error) {
		if of.Name == "failing" {
			return "", nil, false, errors.New("no response")
		}
		found, known := services[of.Name]
		return "db", found, known && protocol == corev1.ProtocolTCP, nil
	}
	leads := func(protocol corev1.Protocol, names ...string) *model.Frontend {
		frontend := &model.Frontend{Gateway: gateway.Object, Port: 5432, Protocol: protocol}
		for _, name := range names {
			weighted := model.WeightedService{ServicePort: model.ServicePort{Namespace: "data", Name: name, Port: 5432}, Weight: 1}
			switch name {
			case "off":
				weighted.Weight = 0
			case "invalid":
				weighted.ServicePort, weighted.Invalid = model.ServicePort{Namespace: "data", Name: "one", Port: 5432}, true
			}
			frontend.Services = append(frontend.Services, weighted)
		}
		return frontend
	}
	proxy := &model.Proxy{Owner: gateway.Object}
	made := func(frontends ...*model.Frontend) []string {
		t.Helper()
		objects, err := infrastructure.EndpointSlices(proxy, frontends, gateway, settings(), backends)
		if err != nil {
			t.Fatal(err)
		}
		var changes []string
		for _, object := range objects {
			slice := object.(*discoveryv1.EndpointSlice)
			if slice.Namespace != "shop" || slice.Labels[discoveryv1.LabelServiceName] != "web-millrace" ||
				slice.Labels[discoveryv1.LabelManagedBy] != infrastructure.ManagedBy || len(slice.OwnerReferences) != 1 {
				t.Errorf("%s: namespace %s, labels %v, owners %v", slice.Name, slice.Namespace, slice.Labels, slice.OwnerReferences)
			}
			text := fmt.Sprintf("%s %s %s/%d:", slice.Name, *slice.Ports[0].Name, *slice.Ports[0].Protocol, *slice.Ports[0].Port)
			for _, endpoint := range slice.Endpoints {
				if len(endpoint.Addresses) != 1 || *endpoint.NodeName != "node1" || !*endpoint.Conditions.Ready {
					t.Errorf("%s: endpoint = %+v, want one ready address on a node", slice.Name, endpoint)
				}
				text += " " + endpoint.Addresses[0]
			}
			changes = append(changes, text)
		}
		return changes
	}
	want := []string{
		"web-millrace-tcp-5432-ipv4-5432-0 tcp-5432 TCP/5432: 198.18.0.1 198.18.0.2",
		"web-millrace-tcp-5432-ipv4-15432-0 tcp-5432 TCP/15432: 198.18.0.3",
		"web-millrace-tcp-5432-ipv6-5432-0 tcp-5432 TCP/5432: 2001:db8::1",
	}
	if got := made(leads(corev1.ProtocolTCP, "one", "invalid", "two", "off", "missing")); !slices.Equal(got, want) {
		t.Errorf("EndpointSlices\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, frontend := range []*model.Frontend{
		leads(corev1.ProtocolTCP), leads(corev1.ProtocolTCP, "off", "invalid", "missing"), leads(corev1.ProtocolUDP, "one"),
	} {
		if got := made(frontend); len(got) > 0 {
			t.Errorf("%+v: EndpointSlices = %v, want none", frontend, got)
		}
	}
	if _, err := infrastructure.EndpointSlices(proxy, []*model.Frontend{leads(corev1.ProtocolTCP, "failing")}, gateway, settings(), backends); err == nil {
		t.Error("no error although backends cannot be read: their endpoints would be removed")
	}

	var many []string
	for i := range 1201 {
		many = append(many, fmt.Sprintf("198.18.%d.%d", i/250, i%250))
	}
	services["one"] = []*discoveryv1.EndpointSlice{slice(four, 5432, many[:700]...), slice(four, 5432, many[700:]...)}
	counts := 0
	got := made(leads(corev1.ProtocolTCP, "one"))
	for _, text := range got {
		counts += strings.Count(text, " 198.18.")
	}
	if len(got) != 3 || counts != len(many) {
		t.Errorf("%d slices with %d endpoints, want 3 with %d", len(got), counts, len(many))
	}
}
