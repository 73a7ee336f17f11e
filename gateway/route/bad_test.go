// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

const leastBad = 100

// field matches a field in the message about a bad object or listener.
var field = regexp.MustCompile(`(^|: |; )(spec|data|metadata|tls|hostname|protocol|port|allowedRoutes)([.:\[]|$)`)

// TestBadObjects checks that each invalid object of the scenarios has a condition or a problem that names the
// field, and does not affect valid objects.
func TestBadObjects(t *testing.T) {
	text, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	good, err := routetest.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for file, objects := range scenarios(t) {
		t.Run(file, func(t *testing.T) {
			all := selected(good, objects, func(string) bool { return true })
			bad := faults(route.Compile(all, model.DefaultSettings()))
			support := selected(good, objects, func(name string) bool { return len(bad[name]) == 0 })
			before := route.Compile(support, model.DefaultSettings())
			for name, messages := range bad {
				total++
				for _, message := range messages {
					if !field.MatchString(message) {
						t.Errorf("%s: message %q does not contain a field path", name, message)
					}
				}
				one := selected(good, objects, func(other string) bool { return len(bad[other]) == 0 || other == name })
				youngest(one, name)
				was, is := outcome(before, name), outcome(route.Compile(one, model.DefaultSettings()), name)
				if !strings.HasPrefix(file, "testdata/bad/") {
					// Bad objects of other directories have valid parts, which affect other objects of the
					// scenario.
					maps.DeleteFunc(was, func(name, _ string) bool { return !strings.Contains(name, " good") })
				}
				notDisturbed(t, name, targets(objects, name), was, is)
			}
		})
	}
	t.Logf("%d invalid objects", total)
	if total < leastBad && !t.Failed() {
		t.Errorf("%d invalid objects, want at least %d", total, leastBad)
	}
}

func selected(good, others *model.Objects, wanted func(name string) bool) *model.Objects {
	found := *good
	into, from := reflect.ValueOf(&found).Elem(), reflect.ValueOf(others).Elem()
	for i := range into.NumField() {
		if into.Field(i).Kind() != reflect.Slice {
			continue
		}
		list := into.Field(i).Slice3(0, into.Field(i).Len(), into.Field(i).Len())
		for j := range from.Field(i).Len() {
			if wanted(nameOf(from.Type().Field(i).Name, from.Field(i).Index(j))) {
				list = reflect.Append(list, from.Field(i).Index(j))
			}
		}
		into.Field(i).Set(list)
	}
	return &found
}

func nameOf(list string, value reflect.Value) string {
	kind := strings.TrimSuffix(list, "s")
	switch list {
	case "IngressClasses", "GatewayClasses":
		kind = strings.TrimSuffix(list, "es")
	case "Ingresses":
		kind = "Ingress"
	case "BackendTLSPolicies":
		kind = "BackendTLSPolicy"
	}
	object, _ := value.Interface().(metav1.Object)
	return fmt.Sprintf("%s %s/%s", kind, object.GetNamespace(), object.GetName())
}

// youngest sets the latest creation time, so that the object takes precedence over no other.
func youngest(objects *model.Objects, name string) {
	fields := reflect.ValueOf(objects).Elem()
	for i := range fields.NumField() {
		if fields.Field(i).Kind() != reflect.Slice {
			continue
		}
		for j := range fields.Field(i).Len() {
			if at := fields.Field(i).Index(j); nameOf(fields.Type().Field(i).Name, at) == name {
				copied := reflect.New(at.Type().Elem())
				copied.Elem().Set(at.Elem())
				object, _ := copied.Interface().(metav1.Object)
				object.SetCreationTimestamp(metav1.NewTime(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)))
				at.Set(copied)
			}
		}
	}
}

// targets returns the Services of a policy, whose backends may be refused.
func targets(objects *model.Objects, name string) []string {
	var found []string
	for _, policy := range objects.BackendTLSPolicies {
		if name == "BackendTLSPolicy "+policy.Namespace+"/"+policy.Name {
			for _, target := range policy.Spec.TargetRefs {
				found = append(found, fmt.Sprintf("/%s/%s/", policy.Namespace, target.Name))
			}
		}
	}
	return found
}

// faults returns the error messages by object, without errors that are caused by another object and reported
// there.
func faults(result *model.Result) map[string][]string {
	found := map[string][]string{}
	for _, problem := range result.Problems {
		name := fmt.Sprintf("%s %s/%s", problem.Object.Kind, problem.Object.Namespace, problem.Object.Name)
		found[name] = append(found[name], problem.Message)
	}
	for subject, conditions := range conditionsOf(result) {
		for _, condition := range conditions {
			wrong := condition.Status == metav1.ConditionFalse
			switch condition.Type {
			case "Conflicted", "PartiallyInvalid":
				wrong = condition.Status == metav1.ConditionTrue
			case "OverlappingTLSConfig", "SupportedVersion":
				wrong = false
			case "Programmed":
				wrong = false
			}
			if wrong {
				found[subject] = append(found[subject], condition.Message)
			}
		}
	}
	return found
}

// conditionsOf returns the conditions of each object, including those of its listeners and parents.
func conditionsOf(result *model.Result) map[string][]metav1.Condition {
	found := map[string][]metav1.Condition{}
	add := func(kind, namespace, name string, conditions []metav1.Condition) {
		subject := fmt.Sprintf("%s %s/%s", kind, namespace, name)
		found[subject] = append(found[subject], conditions...)
	}
	statuses := &result.Statuses
	for _, each := range statuses.GatewayClasses {
		add("GatewayClass", "", each.Name, each.Status.Conditions)
	}
	for _, each := range statuses.Gateways {
		add("Gateway", each.Namespace, each.Name, each.Status.Conditions)
		for _, listener := range each.Status.Listeners {
			add("Gateway", each.Namespace, each.Name, listener.Conditions)
		}
	}
	for _, each := range statuses.ListenerSets {
		add("ListenerSet", each.Namespace, each.Name, each.Status.Conditions)
		for _, listener := range each.Status.Listeners {
			add("ListenerSet", each.Namespace, each.Name, listener.Conditions)
		}
	}
	for kind, list := range map[string][]model.Status[gatewayv1.RouteStatus]{
		"HTTPRoute": statuses.HTTPRoutes, "GRPCRoute": statuses.GRPCRoutes, "TLSRoute": statuses.TLSRoutes,
		"TCPRoute": statuses.TCPRoutes, "UDPRoute": statuses.UDPRoutes,
	} {
		for _, each := range list {
			for _, parent := range each.Status.Parents {
				add(kind, each.Namespace, each.Name, parent.Conditions)
			}
		}
	}
	for _, each := range statuses.BackendTLSPolicies {
		for _, ancestor := range each.Status.Ancestors {
			add("BackendTLSPolicy", each.Namespace, each.Name, ancestor.Conditions)
		}
	}
	return found
}

// notDisturbed compares all results except those of the bad object.
func notDisturbed(t *testing.T, bad string, targets []string, was, is map[string]string) {
	t.Helper()
	if len(was) == 0 {
		t.Fatalf("%s: no object to compare", bad)
	}
	for name, want := range was {
		if slices.ContainsFunc(targets, func(target string) bool { return strings.Contains(want+is[name], target) }) {
			continue
		}
		if diff := cmp.Diff(want, is[name]); diff != "" {
			t.Errorf("%s affects %s (-without +with):\n%s", bad, name, diff)
		}
	}
}

func outcome(result *model.Result, but string) map[string]string {
	kind, name, _ := strings.Cut(but, " ")
	rules := strings.ToLower(kind) + "/" + name + "/"
	found := map[string]string{}
	for _, proxy := range result.Proxies {
		for _, each := range proxy.Resources {
			if group := each.GetRouteGroup(); group != nil {
				copied, _ := proto.Clone(each).(*resource.Resource)
				copied.GetRouteGroup().Rules = slices.DeleteFunc(copied.GetRouteGroup().Rules,
					func(rule *resource.Rule) bool { return strings.HasPrefix(rule.Route, rules) })
				each = copied
			}
			line, _ := protojson.Marshal(each)
			// protojson inserts random spaces.
			compact := map[string]any{}
			_ = json.Unmarshal(line, &compact)
			line, _ = json.Marshal(compact)
			found[fmt.Sprintf("%v %s", proxy.Owner, each.GetName())] = string(line)
		}
	}
	for _, frontend := range result.Frontends {
		found[fmt.Sprintf("%v %s", frontend.Gateway, frontend.Listener)] = fmt.Sprint(frontend)
	}
	for _, ingress := range result.Ingresses {
		found["Ingress "+ingress.Namespace+"/"+ingress.Name] = fmt.Sprint(ingress)
	}
	for subject, conditions := range conditionsOf(result) {
		if subject != but {
			found["conditions of "+subject] = fmt.Sprint(conditions)
		}
	}
	return found
}

// TestTooManyAncestors checks that Gateways without room in the status of a policy refuse its Services.
func TestTooManyAncestors(t *testing.T) {
	text := `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: millrace}
spec: {controllerName: millrace.io/gateway}
---
apiVersion: v1
kind: Service
metadata: {namespace: a, name: s}
spec: {ports: [{port: 443}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {namespace: a, name: p}
spec:
  targetRefs: [{group: "", kind: Service, name: s}]
  validation: {hostname: a.example, wellKnownCACertificates: System}
status:
  ancestors:
    - {ancestorRef: {name: other}, controllerName: example.com/other, conditions: []}
    - {ancestorRef: {name: g16, namespace: a}, controllerName: millrace.io/gateway, conditions: []}
`
	var parents []string
	for i := range 17 {
		parents = append(parents, fmt.Sprintf("{name: g%02d}", i))
		text += fmt.Sprintf(`---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: a, name: g%02d}
spec: {gatewayClassName: millrace, listeners: [{name: http, port: 80, protocol: HTTP}]}
`, i)
	}
	text += fmt.Sprintf(`---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: a, name: r}
spec: {parentRefs: [%s], rules: [{backendRefs: [{name: s, port: 443}]}]}
`, strings.Join(parents, ", "))
	objects, err := routetest.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	result := route.Compile(objects, model.DefaultSettings())
	ancestors := result.Statuses.BackendTLSPolicies[0].Status.Ancestors
	if len(ancestors) != 15 {
		t.Fatalf("%d entries, want 15", len(ancestors))
	}
	for _, ancestor := range ancestors {
		message := ancestor.Conditions[0].Message
		if !strings.HasPrefix(message, "status.ancestors has room for ") || !strings.HasSuffix(message, "2 more Gateways refuse the Services of the policy, the first is a/g14") {
			t.Errorf("message for ancestor %s = %q", ancestor.AncestorRef.Name, message)
		}
	}
	refusing := map[string]bool{"g14": true, "g15": true}
	for _, proxy := range result.Proxies {
		for _, each := range proxy.Resources {
			backend := each.GetBackend()
			if backend != nil && (backend.GetRefuse() != refusing[proxy.Owner.Name] ||
				!backend.GetRefuse() && backend.GetTls().GetHostname() != "a.example") {
				t.Errorf("%v: TLS settings of %s = %v", proxy.Owner, each.GetName(), backend)
			}
		}
	}
	for _, gateway := range result.Statuses.Gateways {
		resolved := meta.FindStatusCondition(gateway.Status.Conditions, string(gatewayv1.GatewayConditionResolvedRefs))
		if full := resolved.Reason == model.ReasonPolicyStatusFull; full != refusing[gateway.Name] {
			t.Errorf("%s: ResolvedRefs = %v", gateway.Name, resolved)
		}
	}
}
