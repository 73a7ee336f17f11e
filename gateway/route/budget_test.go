// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

func long(kilobytes int) []gatewayv1.HTTPRouteRule {
	rule := gatewayv1.HTTPRouteRule{}
	for i := range kilobytes {
		path := "/" + strings.Repeat("x", 1000) + fmt.Sprint(i)
		rule.Matches = append(rule.Matches, gatewayv1.HTTPRouteMatch{Path: &gatewayv1.HTTPPathMatch{Value: &path}})
	}
	return []gatewayv1.HTTPRouteRule{rule}
}

func longRoute(namespace string, i, kilobytes int, hosts ...gatewayv1.Hostname) *gatewayv1.HTTPRoute {
	found := &gatewayv1.HTTPRoute{ObjectMeta: young("h", i)}
	found.Namespace = namespace
	parent := gatewayv1.Namespace("tenant")
	found.Spec = gatewayv1.HTTPRouteSpec{
		CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "gw", Namespace: &parent}}},
		Hostnames:       hosts, Rules: long(kilobytes),
	}
	return found
}

// sizeOf returns the size of the configuration of the only proxies, without the settings of its owner.
func sizeOf(t *testing.T, result *model.Result) (bytes int64) {
	t.Helper()
	if len(result.Proxies) != 1 {
		t.Fatalf("%d proxies, want 1", len(result.Proxies))
	}
	for _, found := range result.Proxies[0].Resources {
		bytes += int64(proto.Size(found))
	}
	return bytes
}

// admitted returns the numbers of a namespace's accepted routes. Other routes must have the reason
// LimitExceeded.
func admitted(t *testing.T, result *model.Result, namespace string) (numbers []int) {
	t.Helper()
	for _, found := range result.Statuses.HTTPRoutes {
		if found.Namespace != namespace {
			continue
		}
		var number int
		if _, err := fmt.Sscanf(found.Name, "h-%d", &number); err != nil {
			t.Fatal(err)
		}
		accepted := meta.FindStatusCondition(found.Status.Parents[0].Conditions, "Accepted")
		switch {
		case accepted.Status == metav1.ConditionTrue:
			numbers = append(numbers, number)
		case accepted.Reason != model.ReasonLimitExceeded || !strings.Contains(accepted.Message, namespace):
			t.Errorf("route %s/%s: %s: %s", namespace, found.Name, accepted.Reason, accepted.Message)
		}
	}
	slices.Sort(numbers)
	return numbers
}

func upTo(count int) (numbers []int) {
	for i := range count {
		numbers = append(numbers, i)
	}
	return numbers
}

// TestRoomOfANamespace checks that the oldest routes of a namespace are admitted, and that a route counts
// once per host.
func TestRoomOfANamespace(t *testing.T) {
	objects := emptyGateway()
	for i := range 10 {
		objects.HTTPRoutes = append(objects.HTTPRoutes, longRoute("many", 9-i, 10, "a.example.com", "b.example.com"))
	}
	objects.HTTPRoutes = append(objects.HTTPRoutes, longRoute("other", 99, 40, "c.example.com"))
	settings := model.DefaultSettings()
	settings.NamespaceBytes = 100_000
	result := route.Compile(objects, settings)
	if got := admitted(t, result, "many"); !slices.Equal(got, upTo(4)) {
		t.Errorf("accepted routes = %v, want the oldest 4", got)
	}
	if got := admitted(t, result, "other"); len(got) != 1 {
		t.Error("the route of another namespace was rejected")
	}
	if got := sizeOf(t, result); got > 150_000 {
		t.Errorf("the configuration has %d bytes", got)
	}
	// Without the oldest route, there is room for the next one.
	objects.HTTPRoutes = slices.DeleteFunc(objects.HTTPRoutes, func(r *gatewayv1.HTTPRoute) bool { return r.Name == "h-0" })
	if got := admitted(t, route.Compile(objects, settings), "many"); !slices.Equal(got, []int{1, 2, 3, 4}) {
		t.Errorf("accepted routes = %v, want 1 to 4", got)
	}
}

// TestRoomIsShared checks that namespaces share the limit of the proxies if they exceed it together.
func TestRoomIsShared(t *testing.T) {
	objects := emptyGateway()
	for i := range 20 {
		objects.HTTPRoutes = append(objects.HTTPRoutes, longRoute("one", i, 10, "a.example.com"), longRoute("two", 100+i, 10, "b.example.com"))
	}
	objects.HTTPRoutes = append(objects.HTTPRoutes, longRoute("little", 999, 10, "c.example.com"))
	settings := model.DefaultSettings()
	settings.NamespaceBytes, settings.ProxyBytes = 150_000, 120_000
	result := route.Compile(objects, settings)
	one, two := admitted(t, result, "one"), admitted(t, result, "two")
	for i := range two {
		two[i] -= 100
	}
	if !slices.Equal(one, upTo(5)) || !slices.Equal(two, upTo(5)) {
		t.Errorf("accepted routes = %v and %v, want the oldest five of each", one, two)
	}
	if got := admitted(t, result, "little"); len(got) != 1 {
		t.Error("the small route of the newest namespace was rejected")
	}
	if got := sizeOf(t, result); got > 121_000 {
		t.Errorf("the configuration has %d bytes, want at most 120,000 plus the Gateway itself", got)
	}
}

// TestRoomOfListeners checks the limits for ListenerSets, with a route that is attached to all of them.
func TestRoomOfListeners(t *testing.T) {
	chain, key, err := routetest.Certificate("*.example.com")
	if err != nil {
		t.Fatal(err)
	}
	objects := emptyGateway()
	for i := range 30 {
		objects.Secrets = append(objects.Secrets, &corev1.Secret{ObjectMeta: young("c", i), Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}})
		set := &gatewayv1.ListenerSet{ObjectMeta: young("s", i)}
		set.Spec.ParentRef = gatewayv1.ParentGatewayReference{Name: "gw"}
		host := gatewayv1.Hostname(fmt.Sprintf("h%d.example.com", i))
		set.Spec.Listeners = []gatewayv1.ListenerEntry{{Name: "l", Hostname: &host, Port: 443, Protocol: gatewayv1.HTTPSProtocolType,
			TLS: &gatewayv1.ListenerTLSConfig{CertificateRefs: []gatewayv1.SecretObjectReference{{Name: gatewayv1.ObjectName(fmt.Sprintf("c-%d", i))}}}}}
		objects.ListenerSets = append(objects.ListenerSets, set)
	}
	of := longRoute("tenant", 0, 10)
	of.Spec.ParentRefs = nil
	kind := gatewayv1.Kind("ListenerSet")
	for i := range 30 {
		of.Spec.ParentRefs = append(of.Spec.ParentRefs, gatewayv1.ParentReference{Kind: &kind, Name: gatewayv1.ObjectName(fmt.Sprintf("s-%d", i))})
	}
	objects.HTTPRoutes = []*gatewayv1.HTTPRoute{of}
	one := int64(len(chain)+len(key)) + 128
	settings := model.DefaultSettings()
	settings.NamespaceBytes = 20*one + 35_000
	result := route.Compile(objects, settings)
	accepted, refused := 0, 0
	for _, parent := range result.Statuses.HTTPRoutes[0].Status.Parents {
		if meta.IsStatusConditionTrue(parent.Conditions, "Accepted") {
			accepted++
		} else if meta.FindStatusCondition(parent.Conditions, "Accepted").Reason == model.ReasonLimitExceeded {
			refused++
		}
	}
	if got := attachedSets(t, result); got != 30 {
		t.Errorf("%d ListenerSets accepted, want all", got)
	}
	if accepted+refused != 30 || refused == 0 {
		t.Errorf("%d parents accept the route, %d have no capacity", accepted, refused)
	}
	if got := sizeOf(t, result); got > settings.NamespaceBytes+5_000 {
		t.Errorf("the configuration has %d bytes, the namespace limit is %d", got, settings.NamespaceBytes)
	}
	settings.NamespaceBytes = 20 * one
	if got := attachedSets(t, route.Compile(objects, settings)); got != 20 {
		t.Errorf("%d ListenerSets accepted, want the oldest 20", got)
	}
	settings.ProxyBytes = 10 * one
	if got := attachedSets(t, route.Compile(objects, settings)); got != 10 {
		t.Errorf("%d ListenerSets accepted in total, want the oldest 10", got)
	}
}

// attachedSets returns the number of accepted ListenerSets, which must be the oldest.
func attachedSets(t *testing.T, result *model.Result) (accepted int) {
	t.Helper()
	youngest := 0
	for _, set := range result.Statuses.ListenerSets {
		var number int
		if _, err := fmt.Sscanf(set.Name, "s-%d", &number); err != nil {
			t.Fatal(err)
		}
		if meta.IsStatusConditionTrue(set.Status.Conditions, "Accepted") {
			accepted++
			youngest = max(youngest, number)
		} else if got := meta.FindStatusCondition(set.Status.Listeners[0].Conditions, "Accepted").Reason; got != model.ReasonLimitExceeded {
			t.Errorf("ListenerSet %s: reason %s", set.Name, got)
		}
	}
	if youngest != accepted-1 {
		t.Errorf("%d ListenerSets are accepted, including number %d: want the oldest", accepted, youngest)
	}
	return accepted
}

func ingressClass() *networkingv1.IngressClass {
	return &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: networkingv1.IngressClassSpec{Controller: model.IngressController},
	}
}

func longIngress(namespace string, i, kilobytes int) *networkingv1.Ingress {
	class, prefix := "web", networkingv1.PathTypePrefix
	ingress := &networkingv1.Ingress{ObjectMeta: young("i", i), Spec: networkingv1.IngressSpec{IngressClassName: &class}}
	ingress.Namespace = namespace
	paths := &networkingv1.HTTPIngressRuleValue{}
	for j := range kilobytes {
		paths.Paths = append(paths.Paths, networkingv1.HTTPIngressPath{
			Path: "/" + strings.Repeat("x", 1000) + fmt.Sprint(j), PathType: &prefix,
			Backend: networkingv1.IngressBackend{
				Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}},
			},
		})
	}
	ingress.Spec.Rules = []networkingv1.IngressRule{{
		Host: fmt.Sprintf("%s%d.example.com", namespace, i), IngressRuleValue: networkingv1.IngressRuleValue{HTTP: paths},
	}}
	return ingress
}

func TestRoomOfIngresses(t *testing.T) {
	objects := &model.Objects{IngressClasses: []*networkingv1.IngressClass{ingressClass()}}
	for i := range 10 {
		objects.Ingresses = append(objects.Ingresses, longIngress("many", 9-i, 10))
	}
	objects.Ingresses = append(objects.Ingresses, longIngress("other", 99, 10))
	settings := model.DefaultSettings()
	settings.NamespaceBytes = 49_000
	result := route.Compile(objects, settings)
	var served []string
	for _, found := range result.Ingresses {
		served = append(served, found.Namespace+"/"+found.Name)
	}
	if want := []string{"many/i-0", "many/i-1", "many/i-2", "many/i-3", "other/i-99"}; !slices.Equal(served, want) {
		t.Errorf("served Ingresses = %v, want %v", served, want)
	}
	count := 0
	for _, problem := range result.Problems {
		if problem.Reason == model.ReasonLimitExceeded && problem.Object.Namespace == "many" && strings.HasPrefix(problem.Message, "spec: older objects of namespace many use its share") &&
			strings.Contains(problem.Message, "49000 bytes") {
			count++
		}
	}
	if count != 6 {
		t.Errorf("%d Ingresses were rejected for lack of capacity, want 6", count)
	}
	if got := sizeOf(t, result); got > 70_000 {
		t.Errorf("the configuration has %d bytes", got)
	}
}

func TestUnreadRoutes(t *testing.T) {
	objects := emptyGateway()
	for i := range 10 {
		objects.HTTPRoutes = append(objects.HTTPRoutes, longRoute("many", i, 10, "a.example.com"))
	}
	settings := model.DefaultSettings()
	settings.NamespaceBytes = 15_000
	result := route.Compile(objects, settings)
	if got := admitted(t, result, "many"); !slices.Equal(got, upTo(1)) {
		t.Errorf("accepted routes = %v, want the oldest", got)
	}
	unread := 0
	for _, found := range result.Statuses.HTTPRoutes {
		// A route that was not read has no condition ResolvedRefs.
		if meta.FindStatusCondition(found.Status.Parents[0].Conditions, "ResolvedRefs") == nil {
			unread++
		}
	}
	if unread != 7 {
		t.Errorf("%d routes were not compiled, want 7: three use twice the limit", unread)
	}
}

// TestLimitMessageIsStable checks that the message does not depend on other objects. Otherwise each change
// would rewrite all statuses.
func TestLimitMessageIsStable(t *testing.T) {
	settings := model.DefaultSettings()
	settings.NamespaceBytes, settings.ProxyBytes = 100_000, 150_000
	compile := func(kilobytes int) (routes []model.Status[gatewayv1.RouteStatus], problems []model.Problem) {
		objects := emptyGateway()
		// The namespaces exceed both the limit of the proxies and the limit for reading routes.
		objects.HTTPRoutes = append(objects.HTTPRoutes,
			longRoute("many", 0, kilobytes, "a.example.com"), longRoute("other", 1, 30+kilobytes, "b.example.com"))
		for i := range 10 {
			objects.HTTPRoutes = append(objects.HTTPRoutes,
				longRoute("many", 10+i, 95, "a.example.com"), longRoute("other", 30+i, 95, "b.example.com"))
		}
		objects.IngressClasses = append(objects.IngressClasses, ingressClass())
		for i, size := range []int{kilobytes, 120, 120} {
			objects.Ingresses = append(objects.Ingresses, longIngress("many", i, size))
		}
		result := route.Compile(objects, settings)
		return result.Statuses.HTTPRoutes, slices.DeleteFunc(result.Problems, func(p model.Problem) bool { return p.Reason != model.ReasonLimitExceeded })
	}
	routes, problems := compile(20)
	others, changed := compile(40)
	refused := 0
	for i := range routes {
		before := meta.FindStatusCondition(routes[i].Status.Parents[0].Conditions, "Accepted")
		after := meta.FindStatusCondition(others[i].Status.Parents[0].Conditions, "Accepted")
		if *before != *after {
			t.Errorf("route %s/%s: condition %q; after a change of another route %q", routes[i].Namespace, routes[i].Name, before.Message, after.Message)
		}
		if before.Reason == model.ReasonLimitExceeded {
			refused++
		}
	}
	if refused != 20 {
		t.Errorf("%d routes are over capacity, want 20", refused)
	}
	if !slices.Equal(problems, changed) || len(problems) != 2 {
		t.Errorf("problems = %v, after a change of another Ingress %v; want the same two", problems, changed)
	}
}
