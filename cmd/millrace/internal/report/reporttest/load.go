// SPDX-License-Identifier: Apache-2.0

// Package reporttest reads the input of a report's tests from YAML.
package reporttest

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// Load reads objects.yaml and, if present, agents.yaml. Unknown fields fail the test.
func Load(t *testing.T, directory string) *report.Input {
	t.Helper()
	in := loadObjects(t, filepath.Join(directory, "objects.yaml"))
	in.Agents = loadAgents(t, filepath.Join(directory, "agents.yaml"))
	return in
}

func loadAgents(t *testing.T, file string) report.Agents {
	t.Helper()
	var agents struct {
		Answers   map[string]*consoleapi.VIPs
		Failures  map[string]string
		Forbidden bool
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = sigsyaml.UnmarshalStrict(text, &agents)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%s: %v", file, err)
	}
	return report.Agents{Responses: agents.Answers, Failures: agents.Failures, Forbidden: agents.Forbidden}
}

func loadObjects(t *testing.T, file string) *report.Input {
	t.Helper()
	opened, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	decoder := newDecoder(t)
	documents := yaml.NewYAMLReader(bufio.NewReader(opened))
	in := &report.Input{Namespace: "millrace-system"}
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return in
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		object, kind, err := decoder.Decode(document, nil, nil)
		if runtime.IsMissingKind(err) {
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v in:\n%s", file, err, document)
		}
		if !add(in, object) {
			t.Fatalf("%s: kind %s is no part of a report", file, kind.Kind)
		}
	}
}

func newDecoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, millracev1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

func add(in *report.Input, object runtime.Object) bool {
	switch object := object.(type) {
	case *corev1.Service:
		in.Services = append(in.Services, *object)
	case *discoveryv1.EndpointSlice:
		in.EndpointSlices = append(in.EndpointSlices, *object)
	case *corev1.Pod:
		in.Pods = append(in.Pods, *object)
	case *millracev1beta1.VIPPool:
		in.Pools = append(in.Pools, *object)
	case *millracev1beta1.VIP:
		in.VIPs = append(in.VIPs, *object)
	case *millracev1beta1.LBPeer:
		in.Peers = append(in.Peers, *object)
	case *millracev1beta1.VIPAdvertisement:
		in.Advertisements = append(in.Advertisements, *object)
	case *millracev1beta1.VIPRoute:
		in.Routes = append(in.Routes, *object)
	case *millracev1beta1.LBNodeReport:
		in.LBNodeReports = append(in.LBNodeReports, *object)
	case *millracev1beta1.LBNode:
		in.LBNodes = append(in.LBNodes, *object)
	default:
		return false
	}
	return true
}
