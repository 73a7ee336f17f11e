// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func compiled(t *testing.T, routes ...*gatewayv1.HTTPRoute) ([]*resource.Resource, []bool) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: "shared", Name: "gw"}
	all := gatewayv1.NamespacesFromAll
	objects := &model.Objects{
		GatewayClasses: []*gatewayv1.GatewayClass{{
			ObjectMeta: metav1.ObjectMeta{Name: "millrace"},
			Spec:       gatewayv1.GatewayClassSpec{ControllerName: model.DefaultSettings().GatewayController},
		}},
		Gateways: []*gatewayv1.Gateway{{ObjectMeta: meta, Spec: gatewayv1.GatewaySpec{
			GatewayClassName: "millrace",
			Listeners: []gatewayv1.Listener{{
				Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType,
				AllowedRoutes: &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &all}},
			}},
		}}},
		HTTPRoutes: routes,
	}
	result := route.Compile(objects, model.DefaultSettings())
	accepted := make([]bool, len(routes))
	for i, r := range routes {
		for _, status := range result.Statuses.HTTPRoutes {
			if status.Name == r.Name {
				accepted[i] = status.Status.Parents[0].Conditions[0].Status == metav1.ConditionTrue
			}
		}
	}
	if len(result.Proxies) != 1 {
		t.Fatalf("%d proxies; want only that of the Gateway", len(result.Proxies))
	}
	return result.Proxies[0].Resources, accepted
}

func matching(name string, rules ...[]string) *gatewayv1.HTTPRoute {
	namespace, kind := gatewayv1.Namespace("shared"), gatewayv1.HeaderMatchRegularExpression
	r := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name}}
	r.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: "gw", Namespace: &namespace}}
	r.Spec.Hostnames = []gatewayv1.Hostname{gatewayv1.Hostname(name + ".example")}
	for _, expressions := range rules {
		rule := gatewayv1.HTTPRouteRule{}
		for _, expression := range expressions {
			rule.Matches = append(rule.Matches, gatewayv1.HTTPRouteMatch{Headers: []gatewayv1.HTTPHeaderMatch{
				{Type: &kind, Name: "x", Value: expression},
			}})
		}
		r.Spec.Rules = append(r.Spec.Rules, rule)
	}
	return r
}

// TestExpressionsOfTenants checks that proxies accept all regular expressions that the compiler accepts.
// Otherwise the expression of one tenant would block the configurations of all tenants.
func TestExpressionsOfTenants(t *testing.T) {
	distinct := func(part string, times int) string {
		parts := make([]string, times)
		for i := range parts {
			parts[i] = string(rune('α'+i)) + part
		}
		return strings.Join(parts, "|")
	}
	for name, tc := range map[string]struct {
		expression string
		want       bool
	}{
		"plain":                             {`v[0-9]+(\.[0-9]+)*`, true},
		"long":                              {strings.Repeat("a", 4096), true},
		"counted":                           {`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`, true},
		"up to 1000":                        {`.{1,1000}`, true},
		"maximum depth":                     {strings.Repeat("(", 998) + "a" + strings.Repeat(")", 998), true},
		"maximum depth exceeded in a group": {strings.Repeat("(", 999) + "a" + strings.Repeat(")", 999), false},
		"open quotation":                    {`\Qa`, false},
		"closed quotation":                  {`\Qa\E`, true},
		"unbalanced group":                  {`a)(?:b`, false},
		"many repetitions":                  {distinct(".{1000}", 300), false},
		"nested repetitions":                {distinct("((x{10}){10}){10}", 100), false},
		"many classes":                      {distinct(`\pL`, 500), false},
	} {
		t.Run(name, func(t *testing.T) {
			resources, accepted := compiled(t, matching("bad", []string{tc.expression}), matching("good", []string{"a+"}))
			if accepted[0] != tc.want || !accepted[1] {
				t.Errorf("accepted: %v, other route %v; want %v and true", accepted[0], accepted[1], tc.want)
			}
			if _, err := plan.New(resources); err != nil {
				t.Errorf("proxies reject the configuration: %.200v", err)
			}
			if _, err := regexp.Compile(tc.expression); err != nil && name != "unbalanced group" {
				t.Errorf("the expression is invalid: %.200v", err)
			}
		})
	}
}

func TestExpressionsOfRoute(t *testing.T) {
	var rules [][]string
	for range 16 {
		rules = append(rules, []string{"a.{1000}", "b.{1000}", "c.{1000}"})
	}
	resources, accepted := compiled(t, matching("many", rules...))
	kept := 0
	for _, r := range resources {
		kept += len(r.GetRouteGroup().GetRules())
	}
	if !accepted[0] || kept < 15 || kept > 24 {
		t.Errorf("accepted: %v, %d rules retained; want it accepted with only the first rules", accepted[0], kept)
	}
}
