// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Objects creates objects on a Server.
type Objects struct {
	client.Client
	root string
}

// Install installs the CRDs of config/crd and returns a client whose scheme has Kubernetes' kinds,
// Millrace's and the given ones. options must have no scheme.
func (s *Server) Install(t *testing.T, config *rest.Config, options client.Options, kinds ...func(*runtime.Scheme) error) *Objects {
	t.Helper()
	// The kustomization adds versions.
	_, err := s.Kubectl(t.Context(), "apply", "--server-side", "-k", filepath.Join(s.root, "config", "crd"))
	Must(t, err)
	_, err = s.Kubectl(t.Context(), "wait", "--for=condition=Established", "crd", "--all")
	Must(t, err)
	options.Scheme = runtime.NewScheme()
	Must(t, errors.Join(clientgoscheme.AddToScheme(options.Scheme), millracev1beta1.AddToScheme(options.Scheme)))
	for _, add := range kinds {
		Must(t, add(options.Scheme))
	}
	made, err := client.New(config, options)
	Must(t, err)
	return &Objects{Client: made, root: s.root}
}

// Make creates objects.
func (o *Objects) Make(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		Must(t, o.Create(t.Context(), object))
	}
}

// MakeNamespaces creates namespaces.
func (o *Objects) MakeNamespaces(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		o.Make(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// MakeOf creates the objects of manifests below config.
func (o *Objects) MakeOf(t *testing.T, files ...string) {
	t.Helper()
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(o.root, "config", file))
		Must(t, err)
		decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
		for {
			object := &unstructured.Unstructured{}
			err := decoder.Decode(object)
			if errors.Is(err, io.EOF) {
				break
			}
			Must(t, err)
			if len(object.Object) > 0 {
				o.Make(t, object)
			}
		}
	}
}

// Log captures a program's output. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(content []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(content)
}

// String returns the output so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// FreePort returns an unused port.
func FreePort(t *testing.T) uint16 {
	t.Helper()
	listener, err := listenOnFree()
	Must(t, err)
	defer listener.Close()
	return uint16(portOf(listener))
}

// Must fails the test immediately if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Eventually waits until a condition holds, and fails the test after limit.
func Eventually(t *testing.T, limit time.Duration, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	last := errors.New("not tried")
	for {
		if err := condition(ctx); err == nil {
			return
		} else if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %s: %v", limit, last)
		case <-ticker.C:
		}
	}
}
