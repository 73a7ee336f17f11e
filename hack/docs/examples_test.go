// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/config/crd"
)

func blocks(page string) (found []string) {
	var block []string
	indent := ""
	end := func() {
		if text := strings.Trim(strings.Join(block, "\n"), "\n"); text != "" {
			found = append(found, text+"\n")
		}
		block = nil
	}
	fenced := false
	for _, line := range strings.Split(page, "\n") {
		spaces := line[:len(line)-len(strings.TrimLeft(line, " "))]
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			end()
			fenced = !fenced
		case fenced:
			block = append(block, line)
		case strings.TrimSpace(line) == "":
			block = append(block, "")
		case len(spaces) < 4 || len(block) > 0 && indent != "" && len(spaces) < len(indent):
			end()
			indent = ""
		default:
			if indent == "" {
				indent = spaces
			}
			block = append(block, strings.TrimPrefix(line, indent))
		}
	}
	end()
	return found
}

// TestExamplesFit checks that Millrace's objects on the pages match their schemas and have no unknown fields.
func TestExamplesFit(t *testing.T) {
	known, err := crd.Kinds()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, name := range slices.Sorted(maps.Keys(pages(t))) {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range blocks(string(content)) {
			for _, object := range objects(block) {
				tried++
				of, ok := known[object.GroupVersionKind()]
				if !ok {
					t.Errorf("%s: there is no kind %s", name, object.GroupVersionKind())
					continue
				}
				for _, problem := range of.Problems(&object) {
					t.Errorf("%s: %s %s: %s", name, object.GetKind(), object.GetName(), problem)
				}
			}
		}
	}
	if tried < 10 {
		t.Errorf("only %d objects were found", tried)
	}
}

var ours = regexp.MustCompile(`(?m)^apiVersion: millrace\.io/v`)

// objects returns the complete objects in a block of YAML, or in the here documents of a block of shell
// commands.
func objects(block string) (found []unstructured.Unstructured) {
	if !ours.MatchString(block) {
		return nil
	}
	if _, document, isHere := strings.Cut(block, "<<'END'\n"); isHere {
		block, _, _ = strings.Cut(document, "\nEND\n")
	}
	documents := utilyaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(block)))
	defer documents.Close()
	for {
		part := make([]byte, len(block)+1)
		n, err := documents.Read(part)
		if errors.Is(err, io.EOF) {
			return found
		}
		var object unstructured.Unstructured
		if err != nil || strings.Contains(string(part[:n]), "…") {
			continue
		}
		content, err := yaml.YAMLToJSON(part[:n])
		if err != nil || object.UnmarshalJSON(content) != nil {
			continue
		}
		if strings.HasPrefix(object.GetAPIVersion(), "millrace.io/v") {
			found = append(found, object)
		}
	}
}

var set = regexp.MustCompile(`--set(?:-string|-json)? '?([A-Za-z0-9_.\[\]]+)=`)

func TestValuesExist(t *testing.T) {
	content, err := os.ReadFile(root + "/config/chart/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(content, &schema); err != nil {
		t.Fatal(err)
	}
	tried := 0
	for name := range pages(t) {
		page, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range set.FindAllStringSubmatch(string(page), -1) {
			tried++
			if !hasValue(schema, strings.Split(match[1], ".")) {
				t.Errorf("%s: the chart has no value %s", name, match[1])
			}
		}
	}
	if tried < 2 {
		t.Errorf("only %d values were found", tried)
	}
}

// hasValue reports whether a schema contains the property at a path. Items of lists are not checked.
func hasValue(schema map[string]any, path []string) bool {
	for _, part := range path {
		name, _, isItem := strings.Cut(part, "[")
		properties, _ := schema["properties"].(map[string]any)
		next, ok := properties[name].(map[string]any)
		if !ok {
			return false
		}
		if isItem {
			return true
		}
		schema = next
	}
	return true
}

func TestHasValue(t *testing.T) {
	schema := map[string]any{"properties": map[string]any{"a": map[string]any{"properties": map[string]any{"b": map[string]any{}}}}}
	for path, want := range map[string]bool{"a": true, "a.b": true, "a.c": false, "b": false, "a.b.c": false, "a.b[0]": true} {
		if got := hasValue(schema, strings.Split(path, ".")); got != want {
			t.Errorf("%s: %t, want %t", path, got, want)
		}
	}
}
