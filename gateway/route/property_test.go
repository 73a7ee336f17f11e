// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"pgregory.net/rapid"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

// scenarios gives the objects of all scenarios, by file.
func scenarios(t *testing.T) map[string]*route.Objects {
	t.Helper()
	files, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*route.Objects{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range txtar.Parse(text).Files {
			if part.Name == "objects" {
				found[file] = parse(t, file, part.Data)
			}
		}
	}
	return found
}

// dump is all of a result as text.
func dump(result *route.Result) string {
	var text strings.Builder
	for _, proxy := range result.Proxies {
		fmt.Fprintf(&text, "%v %v %v %v\n", proxy.Owner, proxy.Ports, proxy.Backends, proxy.Parameters)
		for _, found := range proxy.Resources {
			line, _ := protojson.Marshal(found)
			// protojson adds spaces at random.
			compact := map[string]any{}
			_ = json.Unmarshal(line, &compact)
			line, _ = json.Marshal(compact)
			fmt.Fprintf(&text, "%s\n", line)
		}
	}
	for _, part := range []any{result.Frontends, result.Ingresses, result.Statuses, result.Problems} {
		line, _ := json.MarshalIndent(part, "", " ")
		fmt.Fprintf(&text, "%s\n", line)
	}
	return text.String()
}

// permuted is objects in another order.
func permuted(t *rapid.T, objects *route.Objects) *route.Objects {
	other := *objects
	fields := reflect.ValueOf(&other).Elem()
	for i := range fields.NumField() {
		list := fields.Field(i)
		if list.Kind() != reflect.Slice {
			continue
		}
		order := make([]int, list.Len())
		for j := range order {
			order[j] = j
		}
		order = rapid.Permutation(order).Draw(t, fields.Type().Field(i).Name)
		shuffled := reflect.MakeSlice(list.Type(), list.Len(), list.Len())
		for j, from := range order {
			shuffled.Index(j).Set(list.Index(from))
		}
		list.Set(shuffled)
	}
	return &other
}

// TestOrder: the order of the objects changes nothing.
func TestOrder(t *testing.T) {
	for file, objects := range scenarios(t) {
		t.Run(file, func(t *testing.T) {
			want := dump(route.Compile(objects, route.DefaultSettings()))
			rapid.Check(t, func(t *rapid.T) {
				got := dump(route.Compile(permuted(t, objects), route.DefaultSettings()))
				if got != want {
					t.Fatalf("another order gives another result:\n%s", cmp.Diff(want, got))
				}
			})
		})
	}
}

// disturbs is an annotation of an Ingress that is meant to change the rules of others, and says
// how.
const disturbs = "test/disturbs"

// TestNeighbours: without one object, the rules of all others are the same ones, in the same
// order. Whatever that object says wrong disturbs nobody. It is the youngest: what an older
// one has, others cannot have.
func TestNeighbours(t *testing.T) {
	for file, objects := range scenarios(t) {
		t.Run(file, func(t *testing.T) {
			for i, ingress := range objects.Ingresses {
				if ingress.Annotations[disturbs] != "" {
					continue
				}
				others := *objects
				others.Ingresses = objects.Ingresses[:i]
				all := others
				all.Ingresses = objects.Ingresses[:i+1]
				undisturbed(t, &others, &all, fmt.Sprintf("ingress/%s/%s/", ingress.Namespace, ingress.Name))
			}
			for i, object := range objects.HTTPRoutes {
				others := *objects
				others.HTTPRoutes = objects.HTTPRoutes[:i]
				// Only one of both kinds can have a host name, the older one.
				others.GRPCRoutes = slices.DeleteFunc(slices.Clone(others.GRPCRoutes), func(grpc *gatewayv1.GRPCRoute) bool {
					return !grpc.CreationTimestamp.Before(&object.CreationTimestamp)
				})
				all := others
				all.HTTPRoutes = objects.HTTPRoutes[:i+1]
				undisturbed(t, &others, &all, fmt.Sprintf("httproute/%s/%s/", object.Namespace, object.Name))
			}
		})
	}
}

// undisturbed compares the rules with and without one object's.
func undisturbed(t *testing.T, without, with *route.Objects, prefix string) {
	t.Helper()
	before := rulesByHost(route.Compile(without, route.DefaultSettings()), prefix)
	after := rulesByHost(route.Compile(with, route.DefaultSettings()), prefix)
	for host, rules := range before {
		if diff := cmp.Diff(rules, after[host]); diff != "" {
			t.Errorf("%s disturbs %s (-without +with):\n%s", prefix, host, diff)
		}
	}
}

// rulesByHost lists the rules of each proxy, port and host name, but for those of one object.
func rulesByHost(result *route.Result, prefix string) map[string][]string {
	found := map[string][]string{}
	for _, proxy := range result.Proxies {
		for _, each := range proxy.Resources {
			group := each.GetRouteGroup()
			for _, listener := range group.GetListeners() {
				at := fmt.Sprintf("%v %s %s", proxy.Owner, listener, displayHost(group.Hostname))
				for _, rule := range group.Rules {
					if !strings.HasPrefix(rule.Route, prefix) {
						found[at] = append(found[at], fmt.Sprintf("%s %v", rule.Route, rule.Backends))
					}
				}
			}
		}
	}
	return found
}

// TestWhole: every name that a resource refers to is there, and every listener's target port
// is one of the proxy's.
func TestWhole(t *testing.T) {
	for file, objects := range scenarios(t) {
		t.Run(file, func(t *testing.T) {
			for _, proxy := range route.Compile(objects, route.DefaultSettings()).Proxies {
				if missing := routetest.Missing(proxy); len(missing) > 0 {
					t.Errorf("%v refers to %v, which is not there", proxy.Owner, missing)
				}
				for _, found := range proxy.Resources {
					listener := found.GetListener()
					if listener != nil && !slices.ContainsFunc(proxy.Ports, func(port route.Port) bool {
						return uint32(port.VIP) == listener.Port && uint32(port.Target) == listener.TargetPort
					}) {
						t.Errorf("%s is at %d, %d, which no port is", found.Name, listener.Port, listener.TargetPort)
					}
				}
			}
		})
	}
}

// TestCompilerReuses: what did not change comes out as the same pointers, and a Compiler gives
// what Compile gives.
func TestCompilerReuses(t *testing.T) {
	for file, objects := range scenarios(t) {
		t.Run(file, func(t *testing.T) {
			compiler := &route.Compiler{}
			first := compiler.Compile(objects, route.DefaultSettings())
			second := compiler.Compile(objects, route.DefaultSettings())
			if diff := cmp.Diff(dump(first), dump(second)); diff != "" {
				t.Errorf("the second run gives something else:\n%s", diff)
			}
			for i, proxy := range first.Proxies {
				for j, found := range proxy.Resources {
					if second.Proxies[i].Resources[j] != found {
						t.Errorf("%s is another pointer", found.Name)
					}
				}
			}
		})
	}
}
