// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

// step is a document with checks. Its following objects are applied before its requests are sent.
type step struct {
	Checks []check `json:"checks"`
	// Problems are expressions. Each must match a problem or a condition.
	Problems []string `json:"problems"`
	// NamespaceBytes and Now are fields of model.Settings.
	NamespaceBytes int64     `json:"namespaceBytes"`
	Now            time.Time `json:"now"`
	// Restart replaces the compiler before the step, like a restart of the controller.
	Restart bool `json:"restart"`
}

type check struct {
	// Request is METHOD and URL. Scheme and port of the URL select the port of the VIP.
	Request string `json:"ask"`
	// With are header fields, or RawPath (the request target, sent unchanged), SNI or Body.
	With []string `json:"with"`
	// Keep sends the cookies of the previous responses of the step.
	Keep bool `json:"keep"`
	// Proxy is the owner of the proxies. It may be empty if only one listens.
	Proxy string   `json:"proxy"`
	Want  []string `json:"want"`
	Name  string   `json:"name"`
}

type document struct{ kind, namespace, name, text string }

// TestCases runs the files testdata/*.yaml: steps with checks and objects, each younger than the ones before.
// The first step also has the objects of common.yaml, unless it has objects of the same names.
//
// Annotations of a Service select the behavior of its endpoints: test/speaks "tls", test/mode '{"status":
// 401, "headers": {"X-User": "a"}}', test/replicas "5". An endpoint returns the Service's name in
// X-Backend, and the request as the body.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, file := range files {
		if filepath.Base(file) == "common.yaml" {
			continue
		}
		ran++
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			t.Parallel()
			runCase(t, file)
		})
	}
	if ran == 0 {
		t.Fatal("no cases in testdata")
	}
}

func runCase(t *testing.T, file string) {
	common, err := read("testdata/common.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rest, err := read(file)
	if err != nil {
		t.Fatal(err)
	}
	proxies, compiler := newProxies(t), &route.Compiler{}
	objects := common
	for number := 1; len(rest) > 0; number++ {
		var current step
		if err := strict.UnmarshalStrict([]byte(rest[0].text), &current); err != nil {
			t.Fatalf("step %d: %v", number, err)
		}
		for rest = rest[1:]; len(rest) > 0 && rest[0].kind != ""; rest = rest[1:] {
			objects = put(objects, rest[0])
		}
		var text strings.Builder
		for _, each := range objects {
			text.WriteString(each.text + "\n---\n")
		}
		parsed, err := routetest.Parse([]byte(text.String()))
		if err != nil {
			t.Fatalf("step %d: %v", number, err)
		}
		settings := model.DefaultSettings()
		settings.NamespaceBytes, settings.Now = current.NamespaceBytes, current.Now
		if current.Restart {
			compiler = &route.Compiler{}
		}
		result := compiler.Compile(parsed, settings)
		proxies.apply(parsed.Services, result)
		checkProblems(t, number, current.Problems, result)
		client := &client{proxies: proxies}
		for _, each := range current.Checks {
			client.check(t, number, each)
		}
		if t.Failed() {
			t.Fatalf("problems of step %d: %v", number, result.Problems)
		}
	}
}

func read(file string) (documents []document, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		part, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, err
		}
		var meta metav1.PartialObjectMetadata
		if err := strict.Unmarshal(part, &meta); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		documents = append(documents, document{meta.Kind, meta.Namespace, meta.Name, string(part)})
	}
}

// put replaces the object of the same name, which retains its age, or appends the object.
func put(objects []document, object document) []document {
	found := append([]document{}, objects...)
	for i := range found {
		if found[i].kind == object.kind && found[i].namespace == object.namespace && found[i].name == object.name {
			found[i] = object
			return found
		}
	}
	return append(found, object)
}

func checkProblems(t *testing.T, number int, wanted []string, result *model.Result) {
	t.Helper()
	statuses, err := json.Marshal(result.Statuses)
	if err != nil {
		t.Fatal(err)
	}
	for _, expression := range wanted {
		if text := fmt.Sprintf("%v\n%s", result.Problems, statuses); !regexp.MustCompile(expression).MatchString(text) {
			t.Errorf("step %d: no problem or condition matches %s", number, expression)
		}
	}
}
