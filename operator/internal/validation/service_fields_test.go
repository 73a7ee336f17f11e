// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
	"github.com/millrace-lb/millrace/test/servicefields"
)

func TestServiceFields(t *testing.T) {
	servicefields.Run(t, "../../..", map[string]func(*testing.T){"spec.ports.targetPort": testTargetPort})
}

func testTargetPort(t *testing.T) {
	result := Validate(Subject{
		Service: &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)},
			{Port: 3, Protocol: corev1.ProtocolSCTP, TargetPort: intstr.FromInt32(4)},
		}}},
		Addresses: []Address{{Addr: v4}, {Addr: v6}},
	}, Inputs{})
	isReported := false
	for _, problem := range result.Problems {
		isReported = isReported || problem.Reason == millracev1beta1.ReasonUnsupported && strings.HasPrefix(problem.Message, "spec.ports[1].targetPort: ")
	}
	port := ipam.Port{Number: 3, Protocol: "SCTP"}
	if !isReported || len(result.Ports) != 2 || result.Ports[0] != (PortError{v4, port, millracev1beta1.ReasonUnsupported}) ||
		result.Ports[1] != (PortError{v6, port, millracev1beta1.ReasonUnsupported}) {
		t.Errorf("result = %+v", result)
	}
}
