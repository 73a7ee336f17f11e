// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/servicefields"
)

func TestServiceFields(t *testing.T) {
	servicefields.Run(t, "../..", map[string]func(*testing.T){
		"spec.type":              testType,
		"spec.loadBalancerClass": TestServes,
		"spec.clusterIP":         testClusterIPs,
		"spec.clusterIPs":        testClusterIPs,
		"spec.externalName":      testType,
	})
}

// testType checks each type. externalName is ignored, because such a Service is not a LoadBalancer.
func testType(t *testing.T) {
	for _, kind := range []corev1.ServiceType{
		"", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer,
	} {
		service := &corev1.Service{Spec: corev1.ServiceSpec{Type: kind, ExternalName: "db.example.com"}}
		if got, want := (Class{IsDefault: true}).Serves(service), kind == corev1.ServiceTypeLoadBalancer; got != want {
			t.Errorf("type %q is served: %t, want %t", kind, got, want)
		}
	}
}

func testClusterIPs(t *testing.T) {
	service := &corev1.Service{Spec: corev1.ServiceSpec{
		ClusterIP: "203.0.113.1", ClusterIPs: []string{"203.0.113.1", "2001:db8::1"},
	}}
	pools, _ := Pools([]millracev1beta1.VIPPool{{
		Spec: millracev1beta1.VIPPoolSpec{Addresses: []string{"203.0.113.0/30", "2001:db8::/126"}},
	}}, NewOccupation(OccupiedByService(service)))
	if len(pools) != 1 {
		t.Fatalf("%d pools, want one", len(pools))
	}
	for _, text := range service.Spec.ClusterIPs {
		address, err := ParseAddress(text)
		if err != nil {
			t.Fatal(err)
		}
		if pools[0].Addresses.Contains(address) {
			t.Errorf("the cluster IP %s would be given out", address)
		}
	}
}
