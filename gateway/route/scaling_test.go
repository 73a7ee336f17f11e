// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/test/complexity"
)

func young(kind string, i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "tenant", Name: fmt.Sprintf("%s-%d", kind, i), Generation: 1, CreationTimestamp: metav1.NewTime(time.Unix(int64(1_700_000_000+i), 0)),
	}
}

func emptyGateway() *model.Objects {
	all := gatewayv1.NamespacesFromAll
	return &model.Objects{
		GatewayClasses: []*gatewayv1.GatewayClass{{ObjectMeta: metav1.ObjectMeta{Name: "millrace"},
			Spec: gatewayv1.GatewayClassSpec{ControllerName: model.GatewayController}}},
		Gateways: []*gatewayv1.Gateway{{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "gw"}, Spec: gatewayv1.GatewaySpec{
			GatewayClassName: "millrace",
			AllowedListeners: &gatewayv1.AllowedListeners{Namespaces: &gatewayv1.ListenerNamespaces{From: &all}},
			Listeners: []gatewayv1.Listener{{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType,
				AllowedRoutes: &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &all}}}},
		}}},
		Services: []*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "web"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}},
	}
}

func toService(hosts ...gatewayv1.Hostname) gatewayv1.HTTPRouteSpec {
	port := gatewayv1.PortNumber(80)
	return gatewayv1.HTTPRouteSpec{
		CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "gw"}}}, Hostnames: hosts,
		Rules: []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{
			BackendObjectReference: gatewayv1.BackendObjectReference{Name: "web", Port: &port}}}}}},
	}
}

// growths contains functions that add the i-th object of a kind of which a tenant can have many.
var growths = map[string]func(objects *model.Objects, i int){
	"routes of both kinds": func(objects *model.Objects, i int) {
		names := func(kind string) (hosts []gatewayv1.Hostname) {
			for j := range 8 {
				hosts = append(hosts, gatewayv1.Hostname(fmt.Sprintf("%s%d-%d.example.com", kind, i, j)))
			}
			return hosts
		}
		objects.HTTPRoutes = append(objects.HTTPRoutes, &gatewayv1.HTTPRoute{ObjectMeta: young("h", i), Spec: toService(names("h")...)})
		spec := toService(names("g")...)
		objects.GRPCRoutes = append(objects.GRPCRoutes, &gatewayv1.GRPCRoute{ObjectMeta: young("g", i),
			Spec: gatewayv1.GRPCRouteSpec{CommonRouteSpec: spec.CommonRouteSpec, Hostnames: spec.Hostnames}})
	},
	"policies and routes of a Service": func(objects *model.Objects, i int) {
		objects.HTTPRoutes = append(objects.HTTPRoutes, &gatewayv1.HTTPRoute{ObjectMeta: young("h", i), Spec: toService(gatewayv1.Hostname(fmt.Sprintf("h%d.example.com", i)))})
		policy := &gatewayv1.BackendTLSPolicy{ObjectMeta: young("p", i)}
		policy.Spec.TargetRefs = []gatewayv1.LocalPolicyTargetReferenceWithSectionName{{LocalPolicyTargetReference: gatewayv1.LocalPolicyTargetReference{Kind: "Service", Name: "web"}}}
		policy.Spec.Validation.Hostname = "web.example.com"
		system := gatewayv1.WellKnownCACertificatesSystem
		policy.Spec.Validation.WellKnownCACertificates = &system
		objects.BackendTLSPolicies = append(objects.BackendTLSPolicies, policy)
	},
	"hosts of an Ingress": func(objects *model.Objects, i int) {
		if len(objects.Ingresses) == 0 {
			class := "web"
			objects.IngressClasses = []*networkingv1.IngressClass{{ObjectMeta: metav1.ObjectMeta{Name: class},
				Spec: networkingv1.IngressClassSpec{Controller: model.IngressController}}}
			objects.Ingresses = []*networkingv1.Ingress{{ObjectMeta: young("i", 0), Spec: networkingv1.IngressSpec{
				IngressClassName: &class, TLS: []networkingv1.IngressTLS{{SecretName: "none"}}}}}
		}
		for j := range 8 {
			entry := &objects.Ingresses[0].Spec.TLS[0]
			entry.Hosts = append(entry.Hosts, fmt.Sprintf("h%d-%d.example.com", i, j))
		}
	},
	"ports of ListenerSets": func(objects *model.Objects, i int) {
		set := &gatewayv1.ListenerSet{ObjectMeta: young("s", i)}
		set.Spec.ParentRef = gatewayv1.ParentGatewayReference{Name: "gw"}
		for j := range 8 {
			set.Spec.Listeners = append(set.Spec.Listeners, gatewayv1.ListenerEntry{
				Name: gatewayv1.SectionName(fmt.Sprintf("l%d", j)), Port: gatewayv1.PortNumber(1000 + 8*i + j), Protocol: gatewayv1.HTTPProtocolType})
		}
		objects.ListenerSets = append(objects.ListenerSets, set)
	},
}

func TestPortsOfAGateway(t *testing.T) {
	objects := emptyGateway()
	for i := range 40 {
		growths["ports of ListenerSets"](objects, 39-i)
	}
	result := route.Compile(objects, model.DefaultSettings())
	if got := len(result.Proxies[0].Ports); got != 256 {
		t.Errorf("%d ports, want 256", got)
	}
	for _, set := range result.Statuses.ListenerSets {
		var i int
		if _, err := fmt.Sscanf(set.Name, "s-%d", &i); err != nil {
			t.Fatal(err)
		}
		for j, listener := range set.Status.Listeners {
			want := metav1.ConditionTrue
			if 8*i+j >= 255 {
				want = metav1.ConditionFalse
			}
			accepted := meta.FindStatusCondition(listener.Conditions, "Accepted")
			if accepted.Status != want || want == metav1.ConditionFalse && accepted.Reason != "PortUnavailable" {
				t.Errorf("listener %d of set %d: %s, %s", j, i, accepted.Status, accepted.Reason)
			}
		}
	}
}

// TestWorkGrowsWithObjects checks that the compile time is linear in the objects of one tenant, because it
// delays all tenants.
func TestWorkGrowsWithObjects(t *testing.T) {
	counter := complexity.New(t, "./...")
	for name, add := range growths {
		t.Run(name, func(t *testing.T) {
			counter.ExpectLinear(t, 500, 4, func(count int) {
				objects := emptyGateway()
				for i := range count {
					add(objects, i)
				}
				route.Compile(objects, model.DefaultSettings())
			})
		})
	}
}
