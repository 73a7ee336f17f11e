// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestRenamedPort(t *testing.T) {
	number, named := intstr.FromInt32, intstr.FromString
	type ports map[string]int32
	for name, test := range map[string]struct {
		service map[string]intstr.IntOrString
		slice   ports
		// want is the port of the endpoint of the Service port "new"; 0 if it has none.
		want uint16
	}{
		"same name":                           {map[string]intstr.IntOrString{"new": number(8080)}, ports{"new": 8080}, 8080},
		"renamed":                             {map[string]intstr.IntOrString{"new": number(8080)}, ports{"old": 8080}, 8080},
		"renamed without a selector":          {map[string]intstr.IntOrString{"new": number(8080)}, ports{"old": 8080}, 0},
		"name added":                          {map[string]intstr.IntOrString{"new": number(8080)}, ports{"": 8080}, 8080},
		"renamed with another port unchanged": {map[string]intstr.IntOrString{"new": number(8080), "x": number(9090)}, ports{"old": 8080, "x": 9090}, 8080},
		"number of another port":              {map[string]intstr.IntOrString{"new": number(8080), "x": number(8080)}, ports{"x": 8080}, 0},
		"different port":                      {map[string]intstr.IntOrString{"new": number(8443)}, ports{"old": 8080}, 0},
		"renamed with named target":           {map[string]intstr.IntOrString{"new": named("http")}, ports{"old": 8080}, 8080},
		"named target, ambiguous":             {map[string]intstr.IntOrString{"new": named("http"), "x": named("x")}, ports{"old": 8080, "x": 9090}, 0},
		"named target, ambiguous slices":      {map[string]intstr.IntOrString{"new": named("http")}, ports{"old": 8080, "x": 9090}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
				AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"198.18.0.1"}, NodeName: ptr.To(testNode)}},
			}
			for port, number := range test.slice {
				slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port, Port: &number, Protocol: ptr.To(corev1.ProtocolTCP)})
			}
			spec := corev1.ServiceSpec{Selector: map[string]string{"app": "web"}}
			if name == "renamed without a selector" {
				spec.Selector = nil
			}
			for port, target := range test.service {
				added := corev1.ServicePort{Name: port, Port: 443, Protocol: corev1.ProtocolTCP, TargetPort: target}
				if port == "new" {
					added.Port = 80
				}
				spec.Ports = append(spec.Ports, added)
			}
			for _, f := range Build(portedSnapshot(len(spec.Ports), spec, slice)).Frontends {
				if f.Key.Port != 80 {
					continue
				}
				got := uint16(0)
				if len(f.Endpoints) == 1 {
					got = f.Endpoints[0].Port
				}
				if got != test.want {
					t.Errorf("endpoint port = %d, want %d", got, test.want)
				}
			}
		})
	}
}
