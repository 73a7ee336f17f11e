// SPDX-License-Identifier: Apache-2.0

package endpoints_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/gateway/route/endpoints"
)

const (
	six = `
addressType: IPv6
ports: [{name: http, port: 8080}, {name: other, port: 9}]
endpoints:
- {addresses: ["2001:db8::2"], conditions: {ready: true}}
- {addresses: ["2001:db8::1"]}
- {addresses: ["2001:db8::3"], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: ["2001:db8::4"], conditions: {ready: false, serving: false, terminating: true}}
- {addresses: ["2001:db8::5"], conditions: {ready: false}}
- {addresses: ["nonsense"]}
`
	again = `
addressType: IPv6
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ["2001:db8::3"], conditions: {ready: true}}, {addresses: ["2001:db8::2"], conditions: {ready: false, serving: true, terminating: true}}]
`
	four = `
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [198.18.0.1]}]
`
	udp = `
addressType: IPv6
ports: [{name: http, port: 8080, protocol: UDP}]
endpoints: [{addresses: ["2001:db8::9"]}]
`
	names = `
addressType: FQDN
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [a.example]}]
`
	ended = `
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [198.18.0.1], conditions: {ready: false, serving: false, terminating: true}}]
`
	unready = `
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [198.18.0.1], conditions: {ready: false, serving: false}}]
`
)

func parseSlices(t *testing.T, texts []string) []*discoveryv1.EndpointSlice {
	t.Helper()
	var found []*discoveryv1.EndpointSlice
	for _, text := range texts {
		slice := &discoveryv1.EndpointSlice{}
		if err := yaml.UnmarshalStrict([]byte(text), slice); err != nil {
			t.Fatal(err)
		}
		found = append(found, slice)
	}
	return found
}

func dual() *corev1.Service {
	return &corev1.Service{Spec: corev1.ServiceSpec{
		IPFamilies: []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{
			{Name: "http", Port: 80}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "http", Port: 443, Protocol: corev1.ProtocolUDP},
		},
	}}
}

func TestHasEndpoints(t *testing.T) {
	for _, test := range []struct {
		name     string
		port     int32
		protocol corev1.Protocol
		slices   []string
		want     bool
	}{
		{"ready endpoint", 80, corev1.ProtocolTCP, []string{six}, true},
		{"any family", 80, corev1.ProtocolTCP, []string{four}, true},
		{"unready but serving endpoint", 80, corev1.ProtocolTCP, []string{unready}, true},
		{"terminated endpoint", 80, corev1.ProtocolTCP, []string{ended}, false},
		{"endpoint in one of two slices", 80, corev1.ProtocolTCP, []string{ended, four}, true},
		{"none", 80, corev1.ProtocolTCP, nil, false},
		{"another port", 53, corev1.ProtocolUDP, []string{four}, false},
		{"the protocol", 443, corev1.ProtocolUDP, []string{udp}, true},
		{"another protocol", 443, corev1.ProtocolUDP, []string{four}, false},
		{"no such port", 81, corev1.ProtocolTCP, []string{four}, false},
	} {
		if got := endpoints.Has(dual(), test.port, test.protocol, parseSlices(t, test.slices)); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestEndpoints(t *testing.T) {
	service := dual()
	for _, test := range []struct {
		name   string
		port   int32
		slices []string
		want   string
	}{
		{"ready, draining and unready", 80, []string{six}, "2001:db8::1:8080 2001:db8::2:8080 2001:db8::3:8080~"},
		{"address in two slices", 80, []string{six, again}, "2001:db8::1:8080 2001:db8::2:8080 2001:db8::3:8080"},
		{"first family", 80, []string{four, six}, "2001:db8::1:8080 2001:db8::2:8080 2001:db8::3:8080~"},
		{"second family without endpoints in the first", 80, []string{four}, "198.18.0.1:8080"},
		{"another protocol", 80, []string{udp}, ""},
		{"UDP port", 53, []string{six}, ""},
		{"no such port", 81, []string{six}, ""},
		{"names", 80, []string{names}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			endpointSlices := parseSlices(t, test.slices)
			var got []string
			for _, endpoint := range endpoints.Of(service, test.port, endpointSlices).Endpoints {
				text := fmt.Sprintf("%s:%d", endpoint.Address, endpoint.Port)
				if endpoint.Draining {
					text += "~"
				}
				got = append(got, text)
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("endpoints = %v, want %s", got, test.want)
			}
		})
	}
}
