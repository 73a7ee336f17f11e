// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	gatewayapi "github.com/millrace-lb/millrace/config/gateway-api"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

// refusedBoundaries maps fields with a permitted but refused value to the reason.
var refusedBoundaries = map[string]string{
	"Gateway.spec.addresses[].type":                                     "a VIP is an IP address (UnsupportedAddress)",
	"Gateway.spec.gatewayClassName":                                     "another class",
	"Gateway.spec.listeners[].protocol":                                 "another protocol (UnsupportedProtocol)",
	"HTTPRoute.spec.rules[].filters[].externalAuth.forwardBody.maxSize": "uint16 in the Go types of v1.6.3",
}

var otherObject = regexp.MustCompile(`\.(parentRefs|targetRefs|caCertificateRefs)(\[\]\.(group|kind|name|namespace|port|sectionName))?$`)

// boundary is a minimum or maximum that the schema of a CRD permits for a field.
type boundary struct {
	field string
	path  []any
	value any
}

// TestBoundaries sets each field of testdata/boundaries.yaml to each enum value, minimum and maximum of its
// schema. All values that the API server accepts must be accepted, except refusedBoundaries.
func TestBoundaries(t *testing.T) {
	common, err := os.ReadFile("testdata/gateway/common.yaml")
	must(t, err)
	text, err := os.ReadFile("testdata/boundaries.yaml")
	must(t, err)
	kinds, seen, refused := &gatewayapi.Kinds{}, map[string]bool{}, map[string][]string{}
	documents := strings.Split(string(text), "\n---\n")
	for i, document := range documents {
		if strings.Contains(document, "kind: ConfigMap\nmeta") {
			continue
		}
		others := strings.Join(slices.Delete(slices.Clone(documents), i, i+1), "\n---\n")
		world := slices.Concat(common, []byte("\n---\n"+others+"\n---\n"))
		seed := &unstructured.Unstructured{}
		content, err := yaml.YAMLToJSON([]byte(document))
		must(t, err)
		must(t, seed.UnmarshalJSON(content))
		problems, err := kinds.Problems(gatewayapi.Experimental, seed)
		must(t, err)
		if len(problems) > 0 {
			t.Fatalf("%s %s: %v", seed.GetKind(), seed.GetName(), problems)
		}
		var found []boundary
		boundaries(specOf(t, seed.GetKind()), seed.Object["spec"], boundary{field: seed.GetKind() + ".spec", path: []any{"spec"}}, &found)
		for _, at := range found {
			object := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(seed.Object)}
			put(object.Object, at.path, at.value)
			if problems, err := kinds.Problems(gatewayapi.Experimental, object); err != nil || len(problems) > 0 {
				continue
			}
			seen[at.field] = true
			content, err := yaml.Marshal(object.Object)
			must(t, err)
			objects, err := routetest.Parse(slices.Concat(world, content))
			if err != nil {
				refused[at.field] = append(refused[at.field], err.Error())
				continue
			}
			if why := notAccepted(route.Compile(objects, model.DefaultSettings()), object); why != "" {
				refused[at.field] = append(refused[at.field], fmt.Sprintf("%.60v: %.200s", at.value, why))
			}
		}
	}
	for _, field := range slices.Sorted(maps.Keys(refused)) {
		if refusedBoundaries[field] == "" && !otherObject.MatchString(field) {
			t.Errorf("%s: %v", field, refused[field])
		}
	}
	for field := range refusedBoundaries {
		if refused[field] == nil {
			t.Errorf("%s is listed, but all its values are accepted", field)
		}
	}
	t.Logf("%d fields", len(seen))
	if len(seen) < 150 {
		t.Errorf("only %d fields were tested, want 150: %v", len(seen), slices.Sorted(maps.Keys(seen)))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func specOf(t *testing.T, kind string) map[string]any {
	t.Helper()
	files, err := filepath.Glob("../../config/gateway-api/experimental/gateway.networking.k8s.io_*s.yaml")
	must(t, err)
	for _, file := range files {
		content, err := os.ReadFile(file)
		must(t, err)
		var crd map[string]any
		if err := yaml.Unmarshal(content, &crd); err != nil {
			continue
		}
		if found, _, _ := unstructured.NestedString(crd, "spec", "names", "kind"); found != kind {
			continue
		}
		versions, _, _ := unstructured.NestedSlice(crd, "spec", "versions")
		for _, version := range versions {
			if of, _ := version.(map[string]any); of["name"] == "v1" {
				schema, _, _ := unstructured.NestedMap(of, "schema", "openAPIV3Schema", "properties", "spec")
				return schema
			}
		}
	}
	t.Fatalf("no CRD for %s", kind)
	return nil
}

func boundaries(schema map[string]any, value any, at boundary, found *[]boundary) {
	add := func(value any) { *found = append(*found, boundary{at.field, at.path, value}) }
	under := func(name string, step any) boundary {
		return boundary{field: at.field + name, path: append(slices.Clip(at.path), step)}
	}
	if list, _ := schema["enum"].([]any); len(list) > 0 {
		for _, each := range list {
			add(each)
		}
		return
	}
	switch value := value.(type) {
	case map[string]any:
		properties, _ := schema["properties"].(map[string]any)
		for name, each := range value {
			if of, _ := properties[name].(map[string]any); of != nil {
				boundaries(of, each, under("."+name, name), found)
			}
		}
	case []any:
		items, _ := schema["items"].(map[string]any)
		if len(value) == 0 || items == nil {
			return
		}
		if most, is := schema["maxItems"].(float64); is {
			add(many(value[0], int(most)))
		}
		for i, each := range value {
			boundaries(items, each, under("[]", i), found)
		}
	case string:
		least, _ := schema["minLength"].(float64)
		most, is := schema["maxLength"].(float64)
		pattern, _ := schema["pattern"].(string)
		for _, length := range []int{int(least), int(most)} {
			if text, ok := textOf(pattern, length); ok && (is || length > 0) {
				add(text)
			}
		}
	case int64, float64:
		for _, name := range []string{"minimum", "maximum"} {
			if limit, is := schema[name].(float64); is {
				add(int64(limit))
			}
		}
		if _, bounded := schema["maximum"]; !bounded {
			add(int64(1<<31 - 1))
		}
	}
}

func many(element any, count int) []any {
	list := make([]any, count)
	for i := range list {
		switch of := runtime.DeepCopyJSONValue(element).(type) {
		case string:
			list[i] = of + fmt.Sprint(i)
			if strings.Contains(of, "example") {
				list[i] = strings.Replace(of, "example", fmt.Sprintf("a%d.example", i), 1)
			}
		case map[string]any:
			if name, is := of["name"].(string); is && i > 0 {
				of["name"] = name + fmt.Sprint(i)
			}
			list[i] = of
		case int64, float64:
			list[i] = int64(400 + i)
		}
	}
	return list
}

// textOf returns a text of a length that matches a pattern, and whether it found one.
func textOf(pattern string, length int) (string, bool) {
	if strings.Contains(pattern, "(h|m|s|ms)") {
		return map[bool]string{true: "0s", false: "99999h99999m99999s99999ms"}[length == 0], true
	}
	expression, err := regexp.Compile(cmp.Or(pattern, "."))
	if err != nil || length == 0 {
		return "", false
	}
	label := strings.Repeat("a", 50) + "."
	for _, start := range []string{"a", "/", "a.a/", "https://", "spiffe://a/", "http://a", "*."} {
		for _, filling := range []string{strings.Repeat("a", length), strings.Repeat(label, length/len(label)+1)} {
			text := start + filling
			if text = text[:min(length, len(text))]; strings.HasSuffix(text, ".") {
				text = text[:len(text)-1] + "a"
			}
			if expression.MatchString(text) {
				return text, true
			}
		}
	}
	return "", false
}

func put(object any, path []any, value any) {
	for _, step := range path[:len(path)-1] {
		switch step := step.(type) {
		case string:
			object = object.(map[string]any)[step]
		case int:
			object = object.([]any)[step]
		}
	}
	switch step := path[len(path)-1].(type) {
	case string:
		object.(map[string]any)[step] = value
	case int:
		object.([]any)[step] = value
	}
}

func notAccepted(result *model.Result, object *unstructured.Unstructured) string {
	conditions := conditionsOf(result)[fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())]
	if len(conditions) == 0 {
		return "it has no status"
	}
	for i := range conditions {
		one := conditions[i : i+1]
		if meta.IsStatusConditionFalse(one, "Accepted") || meta.IsStatusConditionTrue(one, "PartiallyInvalid") || meta.IsStatusConditionTrue(one, "Conflicted") {
			return conditions[i].Reason + ": " + conditions[i].Message
		}
	}
	return ""
}
