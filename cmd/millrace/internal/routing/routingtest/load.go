// SPDX-License-Identifier: Apache-2.0

// Package routingtest reads routes of tests from YAML.
package routingtest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

// Load reads objects.yaml of a directory; unknown fields fail the test.
func Load(t *testing.T, directory string) *routing.Input {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(directory, "objects.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := routetest.Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", directory, err)
	}
	return &routing.Input{Objects: *objects, EndpointSlices: endpointSlices(t, text), Namespace: "millrace-system"}
}

func endpointSlices(t *testing.T, text []byte) []*discoveryv1.EndpointSlice {
	t.Helper()
	var found []*discoveryv1.EndpointSlice
	reader := yamlreader.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return found
		}
		var meta metav1.TypeMeta
		if err == nil {
			err = yaml.Unmarshal(document, &meta)
		}
		if err != nil {
			t.Fatal(err)
		}
		if meta.Kind != "EndpointSlice" {
			continue
		}
		slice := &discoveryv1.EndpointSlice{}
		if err := yaml.UnmarshalStrict(document, slice); err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
		found = append(found, slice)
	}
}
