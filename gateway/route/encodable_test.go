// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// TestEncodable makes each string of the built-in objects in the scenarios invalid UTF-8, as protobuf clients
// can, and checks that the proxy accepts all encoded resources. Custom resources can only be written as JSON.
func TestEncodable(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range txtar.Parse(text).Files {
			if part.Name != "objects" {
				continue
			}
			objects := parse(t, file, part.Data)
			for _, built := range builtIn(objects) {
				mutate(built, func(path, text string) {
					count++
					checkEncodable(t, file+": "+path+"="+text, route.Compile(objects, model.DefaultSettings()))
				})
			}
		}
	}
	if count < 500 {
		t.Errorf("only %d strings were replaced", count)
	}
}

// builtIn returns the parts of built-in objects whose strings the API server does not validate as names.
func builtIn(objects *model.Objects) (found []reflect.Value) {
	add := func(object any) { found = append(found, reflect.ValueOf(object)) }
	for _, each := range objects.Ingresses {
		add(&each.Spec)
		add(&each.Annotations)
	}
	for _, each := range objects.IngressClasses {
		add(&each.Spec)
	}
	for _, each := range objects.ConfigMaps {
		add(&each.Data)
	}
	for _, each := range [][]*corev1.Secret{objects.Secrets, objects.Users} {
		for _, secret := range each {
			add(&secret.Data)
		}
	}
	for _, each := range objects.Services {
		add(&each.Spec)
		add(&each.Annotations)
	}
	return found
}

// mutate appends an invalid byte to each string below a value in turn, and calls check.
func mutate(value reflect.Value, check func(path, text string)) {
	walk("", value, func(path string, text string, set func(string)) {
		set(text + "\xff")
		check(path, text)
		set(text)
	})
}

func walk(path string, value reflect.Value, visit func(path, text string, set func(string))) {
	switch value.Kind() {
	case reflect.Pointer:
		if !value.IsNil() {
			walk(path, value.Elem(), visit)
		}
	case reflect.Struct:
		for i := range value.NumField() {
			if value.Type().Field(i).IsExported() {
				walk(path+"."+value.Type().Field(i).Name, value.Field(i), visit)
			}
		}
	case reflect.Slice:
		if value.Type().Elem().Kind() == reflect.Uint8 {
			visit(path, string(value.Bytes()), func(text string) { value.SetBytes([]byte(text)) })
			return
		}
		for i := range value.Len() {
			walk(path, value.Index(i), visit)
		}
	case reflect.Map:
		for _, key := range value.MapKeys() {
			entry := reflect.New(value.Type().Elem()).Elem()
			entry.Set(value.MapIndex(key))
			walk(path+"."+key.String(), entry, func(path, text string, set func(string)) {
				visit(path, text, func(text string) {
					set(text)
					value.SetMapIndex(key, entry)
				})
			})
		}
	case reflect.String:
		visit(path, value.String(), value.SetString)
	}
}

func checkEncodable(t *testing.T, name string, result *model.Result) {
	t.Helper()
	for _, proxy := range result.Proxies {
		var decoded []*resource.Resource
		for _, backend := range proxy.Backends {
			decoded = append(decoded, &resource.Resource{Name: model.EndpointsName(backend), Kind: &resource.Resource_Endpoints{Endpoints: &resource.Endpoints{}}})
		}
		for _, each := range proxy.Resources {
			text, err := proto.Marshal(each)
			if err != nil {
				t.Errorf("%q: resource %q: %v", name, each.GetName(), err)
				return
			}
			copied := &resource.Resource{}
			if err := proto.Unmarshal(text, copied); err != nil {
				t.Errorf("%q: resource %q: %v", name, each.GetName(), err)
				return
			}
			decoded = append(decoded, copied)
		}
		if _, err := plan.New(decoded); err != nil {
			t.Errorf("%q: the proxy rejects the configuration: %v", name, err)
		}
	}
}
