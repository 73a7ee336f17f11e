// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestParseRoute(t *testing.T) {
	type backend = millracev1beta1.VIPRouteBackend
	port := func(port int32, protocol corev1.Protocol, backends ...backend) millracev1beta1.VIPRoutePort {
		return millracev1beta1.VIPRoutePort{Port: port, Protocol: protocol, Backends: backends}
	}
	edge := types.NamespacedName{Namespace: "shop", Name: "edge"}
	key := RouteKey{Service: edge, Port: 443, Protocol: corev1.ProtocolTCP}
	for _, test := range []struct {
		name    string
		service string
		ports   []millracev1beta1.VIPRoutePort
		want    []RoutePort
		fields  []string
	}{
		{
			name: "two Services", service: "edge",
			ports: []millracev1beta1.VIPRoutePort{port(443, "", backend{Name: "a", Port: 80, Weight: 90}, backend{Namespace: "other", Name: "b", Port: 81, Weight: 10})},
			want: []RoutePort{{RouteKey: key, Field: "spec.ports[0]", Backends: []RouteBackend{
				{Service: types.NamespacedName{Namespace: "shop", Name: "a"}, Port: 80, Weight: 90},
				{Service: types.NamespacedName{Namespace: "other", Name: "b"}, Port: 81, Weight: 10},
			}}},
		},
		{
			name: "an invalid backend keeps its weight and is no problem", service: "edge",
			ports: []millracev1beta1.VIPRoutePort{port(443, "TCP", backend{Invalid: true, Weight: 5})},
			want: []RoutePort{{RouteKey: key, Field: "spec.ports[0]", Backends: []RouteBackend{
				{Service: types.NamespacedName{Namespace: "shop"}, Weight: 5, Refused: true},
			}}},
		},
		{
			name: "backends that cannot be read are refused", service: "edge",
			ports: []millracev1beta1.VIPRoutePort{port(443, "TCP", backend{Port: 80, Weight: 1}, backend{Name: "a", Weight: 2}, backend{Name: "b", Port: 80, Weight: -1})},
			want: []RoutePort{{RouteKey: key, Field: "spec.ports[0]", Backends: []RouteBackend{
				{Service: types.NamespacedName{Namespace: "shop"}, Port: 80, Weight: 1, Refused: true},
				{Service: types.NamespacedName{Namespace: "shop", Name: "a"}, Weight: 2, Refused: true},
				{Service: types.NamespacedName{Namespace: "shop", Name: "b"}, Port: 80},
			}}},
			fields: []string{"spec.ports[0].backends[0].name", "spec.ports[0].backends[1].port", "spec.ports[0].backends[2].weight"},
		},
		{
			name: "ports that cannot be used are left out", service: "edge",
			ports:  []millracev1beta1.VIPRoutePort{port(0, "TCP"), port(53, "SCTP"), port(443, "TCP"), port(443, "")},
			want:   []RoutePort{{RouteKey: key, Field: "spec.ports[2]"}},
			fields: []string{"spec.ports[0].port", "spec.ports[1].protocol", "spec.ports[3]"},
		},
		{name: "no Service", fields: []string{"spec.serviceName"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, problems := ParseRoute(&millracev1beta1.VIPRoute{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "r"},
				Spec:       millracev1beta1.VIPRouteSpec{ServiceName: test.service, Ports: test.ports},
			})
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("ports %+v, want %+v", got, test.want)
			}
			var fields []string
			for _, problem := range problems {
				fields = append(fields, problem.Field)
			}
			if !reflect.DeepEqual(fields, test.fields) {
				t.Errorf("problems of %v, want %v", fields, test.fields)
			}
		})
	}
}
