// SPDX-License-Identifier: Apache-2.0

package write

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/gateway/route/model"
)

func TestPointsOf(t *testing.T) {
	below := "millrace.io/NotAnnounced"
	service := &corev1.Service{}
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		{IP: "203.0.113.1"},
		{IP: "203.0.113.2", Ports: []corev1.PortStatus{{Port: 80, Protocol: corev1.ProtocolTCP}, {Port: 443, Protocol: corev1.ProtocolTCP, Error: &below}}},
	}
	var got []string
	for _, point := range pointsOf(service, []model.IngressPort{{Number: 80}, {Number: 443, Error: model.ReasonNotFound}}) {
		for _, port := range point.Ports {
			text := fmt.Sprintf("%s %d", point.IP, port.Port)
			if port.Error != nil {
				text += " " + *port.Error
			}
			got = append(got, text)
		}
	}
	want := "203.0.113.1 80, 203.0.113.1 443 millrace.io/NotFound, 203.0.113.2 80, 203.0.113.2 443 millrace.io/NotAnnounced"
	if have := strings.Join(got, ", "); have != want {
		t.Errorf("entry points = %s; want %s", have, want)
	}
}
