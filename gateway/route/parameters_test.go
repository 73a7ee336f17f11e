// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route"
)

// TestDrainPeriod reads the parameter of a GatewayClass. What cannot be read has its default.
func TestDrainPeriod(t *testing.T) {
	namespace := gatewayv1.Namespace("infra")
	for text, want := range map[string]time.Duration{
		"1s": time.Second, "90m": 90 * time.Minute, " 1h ": time.Hour, "168h": 168 * time.Hour,
		"": 0, "0s": 0, "-1h": 0, "169h": 0, "1": 0, "999ms": 0,
	} {
		objects := &route.Objects{
			ConfigMaps: []*corev1.ConfigMap{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Name: "parameters"},
				Data:       map[string]string{route.ParameterDrainPeriod: text},
			}},
			GatewayClasses: []*gatewayv1.GatewayClass{{
				ObjectMeta: metav1.ObjectMeta{Name: "millrace"},
				Spec: gatewayv1.GatewayClassSpec{
					ControllerName: route.GatewayController,
					ParametersRef:  &gatewayv1.ParametersReference{Kind: "ConfigMap", Namespace: &namespace, Name: "parameters"},
				},
			}},
			Gateways: []*gatewayv1.Gateway{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Name: "edge"},
				Spec:       gatewayv1.GatewaySpec{GatewayClassName: "millrace"},
			}},
		}
		result := route.Compile(objects, route.DefaultSettings())
		if got := result.Proxies[0].Parameters.DrainPeriod; got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
		accepted := result.Statuses.GatewayClasses[0].Status.Conditions[0]
		if (accepted.Status == metav1.ConditionTrue) != (want != 0) {
			t.Errorf("%q: Accepted is %s: %s", text, accepted.Status, accepted.Message)
		}
	}
}
