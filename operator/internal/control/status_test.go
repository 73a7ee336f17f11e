// SPDX-License-Identifier: Apache-2.0

package control

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestReadyConditionFits(t *testing.T) {
	problems := []desired.Problem{
		{Reason: millracev1beta1.ReasonPoolOverlap, Message: "first"},
		{Reason: millracev1beta1.ReasonInvalid, Message: strings.Repeat("ä", MaxMessage)},
	}
	condition := Ready(3, problems, "note")
	if condition.Status != metav1.ConditionFalse || condition.Reason != millracev1beta1.ReasonPoolOverlap || condition.ObservedGeneration != 3 {
		t.Errorf("condition = %s %s at generation %d", condition.Status, condition.Reason, condition.ObservedGeneration)
	}
	if !strings.HasPrefix(condition.Message, "first; ä") || len(condition.Message) > MaxMessage || !strings.HasSuffix(condition.Message, "ä ...") {
		t.Errorf("message has %d bytes and ends with %q", len(condition.Message), condition.Message[len(condition.Message)-10:])
	}
}

func TestSameObject(t *testing.T) {
	base := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "1"}}
	tests := []struct {
		name   string
		change func(*corev1.Service)
		want   string
	}{
		{"status", func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
		},
			`{"metadata":{"uid":"1"},"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.9"}]}}}`},
		{"metadata", func(s *corev1.Service) { s.Labels = map[string]string{"a": "b"} }, `{"metadata":{"labels":{"a":"b"},"uid":"1"}}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			changed := base.DeepCopy()
			test.change(changed)
			got, err := SameObject{Patch: client.MergeFrom(base), UID: base.UID}.Data(changed)
			if err != nil || string(got) != test.want {
				t.Errorf("Data = %s, %v, want %s", got, err, test.want)
			}
		})
	}
}
