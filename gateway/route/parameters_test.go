// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/parameters"
)

func TestDrainPeriod(t *testing.T) {
	namespace := gatewayv1.Namespace("infra")
	for text, want := range map[string]time.Duration{
		"1s": time.Second, "90m": 90 * time.Minute, " 1h ": time.Hour, "168h": 168 * time.Hour,
		"": 0, "0s": 0, "-1h": 0, "169h": 0, "1": 0, "999ms": 0,
	} {
		objects := &model.Objects{
			ConfigMaps: []*corev1.ConfigMap{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Name: "parameters"},
				Data:       map[string]string{parameters.DrainPeriod: text},
			}},
			GatewayClasses: []*gatewayv1.GatewayClass{{
				ObjectMeta: metav1.ObjectMeta{Name: "millrace"},
				Spec: gatewayv1.GatewayClassSpec{
					ControllerName: model.GatewayController,
					ParametersRef:  &gatewayv1.ParametersReference{Kind: "ConfigMap", Namespace: &namespace, Name: "parameters"},
				},
			}},
			Gateways: []*gatewayv1.Gateway{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Name: "edge"},
				Spec:       gatewayv1.GatewaySpec{GatewayClassName: "millrace"},
			}},
		}
		result := route.Compile(objects, model.DefaultSettings())
		if got := result.Proxies[0].Parameters.DrainPeriod; got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
		accepted := result.Statuses.GatewayClasses[0].Status.Conditions[0]
		if (accepted.Status == metav1.ConditionTrue) != (want != 0) {
			t.Errorf("%q: Accepted = %s: %s", text, accepted.Status, accepted.Message)
		}
	}
}

func TestPlacement(t *testing.T) {
	seconds := int64(5)
	for _, test := range []struct {
		key, text string
		want      model.Parameters
		refused   string
	}{
		{parameters.PullSecrets, "[{name: registry}]", model.Parameters{PullSecrets: []corev1.LocalObjectReference{{Name: "registry"}}}, ""},
		{parameters.PullSecrets, "registry", model.Parameters{}, "it does not have the form of a pod's spec"},
		{parameters.PullSecrets, "[{name: a}, {name: B_}]", model.Parameters{}, "item 2: a lowercase RFC 1123 subdomain"},
		{parameters.PullSecrets, "[{nam: a}]", model.Parameters{}, `unknown field "nam"`},
		{parameters.NodeSelector, "{kubernetes.io/arch: amd64}", model.Parameters{NodeSelector: map[string]string{"kubernetes.io/arch": "amd64"}}, ""},
		{parameters.NodeSelector, "disk: ssd\nzone: a", model.Parameters{NodeSelector: map[string]string{"disk": "ssd", "zone": "a"}}, ""},
		{parameters.NodeSelector, "{disk: a b}", model.Parameters{}, "disk: a valid label must be"},
		{parameters.NodeSelector, "[a]", model.Parameters{}, "it does not have the form of a pod's spec"},
		{
			parameters.Tolerations, "- {key: edge, operator: Exists}\n- {key: a, value: b, effect: NoExecute, tolerationSeconds: 5}",
			model.Parameters{Tolerations: []corev1.Toleration{
				{Key: "edge", Operator: corev1.TolerationOpExists}, {Key: "a", Value: "b", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds},
			}}, "",
		},
		{parameters.Tolerations, "[{operator: Exists}]", model.Parameters{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}, ""},
		{parameters.Tolerations, "[{value: a}]", model.Parameters{}, "operator must be Exists"},
		{parameters.Tolerations, "[{key: a, operator: Exists, value: b}]", model.Parameters{}, "value must be empty"},
		{parameters.Tolerations, "[{key: a, operator: In}]", model.Parameters{}, `operator "In"`},
		{parameters.Tolerations, "[{key: a, effect: Never}]", model.Parameters{}, `unknown effect "Never"`},
		{parameters.Tolerations, "[{key: a, tolerationSeconds: 1}]", model.Parameters{}, "tolerationSeconds is for"},
	} {
		namespace := gatewayv1.Namespace("infra")
		result := route.Compile(&model.Objects{
			ConfigMaps: []*corev1.ConfigMap{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Name: "parameters"}, Data: map[string]string{test.key: test.text},
			}},
			GatewayClasses: []*gatewayv1.GatewayClass{{
				ObjectMeta: metav1.ObjectMeta{Name: "millrace"},
				Spec: gatewayv1.GatewayClassSpec{
					ControllerName: model.GatewayController,
					ParametersRef:  &gatewayv1.ParametersReference{Kind: "ConfigMap", Namespace: &namespace, Name: "parameters"},
				},
			}},
			Gateways: []*gatewayv1.Gateway{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Name: "edge"}, Spec: gatewayv1.GatewaySpec{GatewayClassName: "millrace"},
			}},
		}, model.DefaultSettings())
		if got := result.Proxies[0].Parameters; !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %q is %+v, want %+v", test.key, test.text, got, test.want)
		}
		accepted := result.Statuses.GatewayClasses[0].Status.Conditions[0]
		if (accepted.Status == metav1.ConditionTrue) != (test.refused == "") || !strings.Contains(accepted.Message, test.refused) {
			t.Errorf("%s: %q: Accepted = %s: %s, want %q", test.key, test.text, accepted.Status, accepted.Message, test.refused)
		}
	}
}

func TestTLSPolicy(t *testing.T) {
	result := route.Compile(parse(t, "testdata/gateway/none", []byte(`
apiVersion: v1
kind: ConfigMap
metadata: {namespace: infra, name: parameters}
data: {tlsPolicy: modern}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: strict}
spec: {controller: millrace.io/ingress, parameters: {kind: ConfigMap, name: parameters, namespace: infra, scope: Namespace}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: infra, name: i}
spec:
  ingressClassName: strict
  tls: [{hosts: [a.example], secretName: cert}]
  rules: [{host: a.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: one, port: {number: 80}}}}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: infra, name: strict}
spec:
  gatewayClassName: millrace
  infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: parameters}}
  listeners:
  - {name: https, protocol: HTTPS, port: 443, tls: {certificateRefs: [{name: cert}]}}
  - {name: passed, protocol: TLS, port: 8443, tls: {mode: Passthrough}}
`)), model.DefaultSettings())
	wanted := map[string]resource.Listener_TLSPolicy{
		"IngressClass//strict listener/https/a.example": resource.Listener_MODERN, "Gateway/infra/strict listener/https": resource.Listener_MODERN,
		"IngressClass//strict listener/http": resource.Listener_INTERMEDIATE, "Gateway/infra/strict listener/passed": resource.Listener_INTERMEDIATE,
	}
	for _, proxy := range result.Proxies {
		for _, each := range proxy.Resources {
			name := model.OwnerKey(proxy.Owner) + " " + each.GetName()
			if want, ok := wanted[name]; each.GetListener() != nil && proxy.Owner.Name == "strict" {
				if got := each.GetListener().GetTlsPolicy(); !ok || got != want {
					t.Errorf("policy of %s = %v, want %v", name, got, want)
				}
				delete(wanted, name)
			}
		}
	}
	if len(wanted) > 0 {
		t.Errorf("missing: %v", wanted)
	}
}
