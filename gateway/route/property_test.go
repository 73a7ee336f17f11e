// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/proxy"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

func scenarios(t *testing.T) map[string]*model.Objects {
	t.Helper()
	files, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*model.Objects{}
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

func dump(result *model.Result) string {
	var text strings.Builder
	for _, proxy := range result.Proxies {
		fmt.Fprintf(&text, "%v %v %v %v\n", proxy.Owner, proxy.Ports, proxy.Backends, proxy.Parameters)
		for _, found := range proxy.Resources {
			line, _ := protojson.Marshal(found)
			// protojson inserts random spaces.
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

func permuted(t *rapid.T, objects *model.Objects) *model.Objects {
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

// TestOrder checks that the result does not depend on the order of the objects.
func TestOrder(t *testing.T) {
	for file, objects := range scenarios(t) {
		t.Run(file, func(t *testing.T) {
			want := dump(route.Compile(objects, model.DefaultSettings()))
			rapid.Check(t, func(t *rapid.T) {
				got := dump(route.Compile(permuted(t, objects), model.DefaultSettings()))
				if got != want {
					t.Fatalf("the result depends on the order of objects:\n%s", cmp.Diff(want, got))
				}
			})
		})
	}
}

// disturbs is a test annotation of an Ingress whose annotations change the rules of others. Its value is the
// kind of change.
const disturbs = "test/disturbs"

// TestNeighbors checks that the youngest object does not change the rules of other objects.
func TestNeighbors(t *testing.T) {
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
				// Of an HTTPRoute and a GRPCRoute, only the older can have a host name.
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

func undisturbed(t *testing.T, without, with *model.Objects, prefix string) {
	t.Helper()
	before := rulesByHost(route.Compile(without, model.DefaultSettings()), prefix)
	after := rulesByHost(route.Compile(with, model.DefaultSettings()), prefix)
	for host, rules := range before {
		if diff := cmp.Diff(rules, after[host]); diff != "" {
			t.Errorf("%s affects %s (-without +with):\n%s", prefix, host, diff)
		}
	}
}

func rulesByHost(result *model.Result, prefix string) map[string][]string {
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

func TestReferencesExist(t *testing.T) {
	for file, objects := range scenarios(t) {
		t.Run(file, func(t *testing.T) {
			for _, proxy := range route.Compile(objects, model.DefaultSettings()).Proxies {
				if missing := routetest.Missing(proxy); len(missing) > 0 {
					t.Errorf("%v references missing resources %v", proxy.Owner, missing)
				}
				for _, found := range proxy.Resources {
					listener := found.GetListener()
					if listener != nil && !slices.ContainsFunc(proxy.Ports, func(port model.Port) bool {
						return uint32(port.VIP) == listener.Port && uint32(port.Target) == listener.TargetPort
					}) {
						t.Errorf("%s is on port %d, %d, which is not open", found.Name, listener.Port, listener.TargetPort)
					}
				}
			}
		})
	}
}

// TestCompilerReuses checks that a Compiler returns the result of Compile, with the same pointers for
// unchanged resources.
func TestCompilerReuses(t *testing.T) {
	for file, objects := range scenarios(t) {
		t.Run(file, func(t *testing.T) {
			compiler := &route.Compiler{}
			first := compiler.Compile(objects, model.DefaultSettings())
			second := compiler.Compile(objects, model.DefaultSettings())
			if diff := cmp.Diff(dump(first), dump(second)); diff != "" {
				t.Errorf("the second run returns a different result:\n%s", diff)
			}
			for i, proxy := range first.Proxies {
				for j, found := range proxy.Resources {
					if second.Proxies[i].Resources[j] != found {
						t.Errorf("pointer of %s changed", found.Name)
					}
				}
			}
		})
	}
}

// odd contains strings that API servers accept and that a parser may misread.
var odd = []string{
	"", " ", "a b", "\x00", "\n", "%", "%zz", "/%ff", "//", "/../", "?", "#", "/a?b", "$1", "$x", "(", "(?!x)", "[", "*", "*.*", "-", "ä", "\u2028", "\uFFFD",
	"/admin(?!/public).*", "://", "http://[", "0", "-1", "99999999999999999999", "1e9", "true", strings.Repeat("x", 5000), "\xff", "a\xff", "/\xff",
}

// TestCompiledOutputIsAccepted checks that the proxy accepts the compiled configuration of objects with odd
// strings.
func TestCompiledOutputIsAccepted(t *testing.T) {
	worlds := scenarios(t)
	files := slices.Sorted(maps.Keys(worlds))
	rapid.Check(t, func(t *rapid.T) {
		objects := deepCopied(worlds[rapid.SampledFrom(files).Draw(t, "file")])
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			fields := reflect.ValueOf(objects).Elem()
			list := fields.Field(rapid.IntRange(0, fields.NumField()-1).Draw(t, "list"))
			if list.Kind() != reflect.Slice || list.Len() == 0 {
				continue
			}
			object := list.Index(rapid.IntRange(0, list.Len()-1).Draw(t, "object"))
			isJSON := strings.Contains(object.Type().String(), "v1.") && strings.Contains(object.Type().Elem().PkgPath(), "gateway-api")
			var places []func(string)
			spoil(object, &places)
			if text := rapid.SampledFrom(odd).Draw(t, "text"); len(places) > 0 && (!isJSON || utf8.ValidString(text)) {
				places[rapid.IntRange(0, len(places)-1).Draw(t, "place")](text)
			}
		}
		for _, compiled := range route.Compile(objects, model.DefaultSettings()).Proxies {
			resources := slices.Clone(compiled.Resources)
			for _, port := range compiled.Backends {
				resources = append(resources, &resource.Resource{Name: model.EndpointsName(port), Kind: &resource.Resource_Endpoints{Endpoints: &resource.Endpoints{}}})
			}
			for i, r := range resources {
				content, err := proto.Marshal(r)
				if err != nil {
					t.Fatalf("resource %q cannot be encoded: %v", r.GetName(), err)
				}
				resources[i] = &resource.Resource{}
				if err := proto.Unmarshal(content, resources[i]); err != nil || !proto.Equal(resources[i], r) {
					t.Fatalf("resource %q decoded as %v: %v", r.GetName(), resources[i], err)
				}
			}
			settings := proxy.Defaults()
			settings.Address = fmt.Sprintf("127.79.%d.1", os.Getpid()%250)
			served := proxy.New(settings)
			served.Apply(proxy.Update{Version: "1", Whole: true, Resources: resources})
			refused := slices.DeleteFunc(served.Refused(), func(reason string) bool { return strings.Contains(reason, "listen at port") })
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			_ = served.Shutdown(ended)
			if len(refused) > 0 {
				t.Fatalf("a proxy rejects %v", refused)
			}
		}
	})
}

func deepCopied(of *model.Objects) *model.Objects {
	copied := *of
	fields := reflect.ValueOf(&copied).Elem()
	for i := range fields.NumField() {
		if fields.Field(i).Kind() != reflect.Slice {
			continue
		}
		list := reflect.MakeSlice(fields.Field(i).Type(), fields.Field(i).Len(), fields.Field(i).Len())
		for j := range list.Len() {
			list.Index(j).Set(fields.Field(i).Index(j).MethodByName("DeepCopy").Call(nil)[0])
		}
		fields.Field(i).Set(list)
	}
	return &copied
}

// spoil collects setters for all strings except object names, which the API server validates.
func spoil(value reflect.Value, places *[]func(string)) {
	switch value.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !value.IsNil() {
			spoil(value.Elem(), places)
		}
	case reflect.Struct:
		for i := range value.NumField() {
			if name := value.Type().Field(i).Name; value.Field(i).CanSet() && name != "Namespace" && name != "Name" && name != "Status" {
				spoil(value.Field(i), places)
			}
		}
	case reflect.Slice:
		for i := range value.Len() {
			spoil(value.Index(i), places)
		}
	case reflect.Map:
		for _, key := range value.MapKeys() {
			if value.Type().Elem().Kind() == reflect.String {
				*places = append(*places, func(text string) {
					value.SetMapIndex(key, reflect.ValueOf(text).Convert(value.Type().Elem()))
				})
			}
		}
	case reflect.String:
		*places = append(*places, value.SetString)
	}
}
