// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror/apierrortest"
)

type server struct {
	lists    map[string]string
	failures map[string]int
}

func (s server) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	out.Header().Set("Content-Type", "application/json")
	if code := s.failures[request.URL.Path]; code != 0 {
		out.WriteHeader(code)
		reason := map[int]string{http.StatusForbidden: "Forbidden", http.StatusNotFound: "NotFound", http.StatusUnauthorized: "Unauthorized"}[code]
		message := "refused: " + request.URL.Path
		if code == http.StatusForbidden {
			message = apierrortest.Denied(request.URL.Path)
		}
		status := map[string]any{
			"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
			"message": message,
		}
		_ = json.NewEncoder(out).Encode(status)
		return
	}
	body, ok := s.lists[request.URL.Path]
	if !ok {
		http.NotFound(out, request)
		return
	}
	fmt.Fprint(out, body)
}

const (
	pathVIPs  = "/apis/millrace.io/v1beta1/vips"
	pathPods  = "/api/v1/namespaces/millrace-system/pods"
	pathPools = "/apis/millrace.io/v1beta1/vippools"
	// Services of the cluster, and of the context's namespace.
	pathServices        = "/api/v1/services"
	pathDefaultServices = "/api/v1/namespaces/default/services"
)

func lists() map[string]string {
	empty := func(version, kind string) string {
		return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{},"items":[]}`, version, kind)
	}
	const own = "/apis/millrace.io/v1beta1/"
	return map[string]string{
		pathPools:                 empty("millrace.io/v1beta1", "VIPPoolList"),
		pathVIPs:                  `{"apiVersion":"millrace.io/v1beta1","kind":"VIPList","metadata":{},"items":[{"metadata":{"name":"203.0.113.1"},"spec":{"address":"203.0.113.1"}}]}`,
		own + "lbpeers":           empty("millrace.io/v1beta1", "LBPeerList"),
		own + "vipadvertisements": empty("millrace.io/v1beta1", "VIPAdvertisementList"),
		own + "viproutes":         empty("millrace.io/v1beta1", "VIPRouteList"),
		own + "lbnodes":           empty("millrace.io/v1beta1", "LBNodeList"),
		own + "lbnodereports":     empty("millrace.io/v1beta1", "LBNodeReportList"),
		pathServices:              empty("v1", "ServiceList"),
		"/apis/discovery.k8s.io/v1/endpointslices": empty("discovery.k8s.io/v1", "EndpointSliceList"),
		pathPods: `{"apiVersion":"v1","kind":"PodList","metadata":{},"items":[{"metadata":{"name":"millrace-operator-1"}}]}`,
	}
}

func kubeconfig(t *testing.T, address string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q}}]
users: [{name: test, user: {}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`, address)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func config(file string) Config {
	return Config{Kubeconfig: file, Namespace: "millrace-system", Timeout: 5 * time.Second}
}

func TestRead(t *testing.T) {
	api := httptest.NewServer(server{lists: lists()})
	defer api.Close()
	in, err := Read(t.Context(), config(kubeconfig(t, api.URL)))
	if err != nil {
		t.Fatal(err)
	}
	if len(in.VIPs) != 1 || len(in.Omitted) != 0 || in.Sole != "" || in.VIPs[0].Spec.Address != "203.0.113.1" || len(in.Pods) != 1 || in.Namespace != "millrace-system" {
		t.Errorf("read %+v", in)
	}
}

// TestReadOmitted checks that kinds that the user may not list do not fail a report.
func TestReadOmitted(t *testing.T) {
	all := lists()
	all[pathDefaultServices] = `{"apiVersion":"v1","kind":"ServiceList","metadata":{},"items":[{"metadata":{"namespace":"default","name":"web"},
		"spec":{"type":"LoadBalancer","loadBalancerClass":"millrace.io/lb"},"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.7"}]}}}]}`
	api := httptest.NewServer(server{lists: all, failures: map[string]int{
		pathServices: http.StatusForbidden, pathVIPs: http.StatusForbidden, pathPods: http.StatusForbidden,
	}})
	defer api.Close()
	in, err := Read(t.Context(), config(kubeconfig(t, api.URL)))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(in.Omitted, []string{"Pods", "VIPs"}) || in.Sole != "default" || len(in.VIPs) != 1 || in.VIPs[0].Spec.Address != "203.0.113.7" {
		t.Errorf("read %+v", in)
	}
}

func TestReadFailures(t *testing.T) {
	for _, test := range []struct {
		name     string
		failures map[string]int
		want     error
		message  string
	}{
		{"no CRDs", map[string]int{pathPools: http.StatusNotFound}, ErrNotInstalled, "kubectl apply"},
		{"forbidden", map[string]int{pathServices: http.StatusForbidden, pathDefaultServices: http.StatusForbidden}, ErrForbidden,
			"user jane may not list services: ClusterRole millrace-viewer permits it; for namespace default alone, ClusterRole view, bound there"},
		{"unauthorized", map[string]int{pathVIPs: http.StatusUnauthorized}, ErrForbidden, "credentials"},
	} {
		t.Run(test.name, func(t *testing.T) {
			api := httptest.NewServer(server{lists: lists(), failures: test.failures})
			defer api.Close()
			_, err := Read(t.Context(), config(kubeconfig(t, api.URL)))
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.message) {
				t.Errorf("error %v, want %v with %q", err, test.want, test.message)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

func TestReadUnreachable(t *testing.T) {
	api := httptest.NewServer(http.NotFoundHandler())
	address := api.URL
	api.Close()
	_, err := Read(t.Context(), config(kubeconfig(t, address)))
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), address) {
		t.Errorf("error %v, want %v at %s", err, ErrUnreachable, address)
	}
}

func TestReadTimeout(t *testing.T) {
	silent := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-silent }))
	defer api.Close()
	defer close(silent)
	limited := config(kubeconfig(t, api.URL))
	limited.Timeout = 50 * time.Millisecond
	if _, err := Read(t.Context(), limited); !errors.Is(err, ErrUnreachable) {
		t.Errorf("error %v, want %v", err, ErrUnreachable)
	}
}

func TestReadInterrupted(t *testing.T) {
	api := httptest.NewServer(server{lists: lists()})
	defer api.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, config(kubeconfig(t, api.URL))); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

func TestConfig(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Read(t.Context(), Config{}); !errors.Is(err, ErrNoConfig) || !strings.Contains(err.Error(), "KUBECONFIG") {
		t.Errorf("no kubeconfig: error %v", err)
	}
	if _, err := Read(t.Context(), Config{Kubeconfig: filepath.Join(t.TempDir(), "none")}); !errors.Is(err, ErrNoConfig) {
		t.Errorf("absent file: error %v", err)
	}
	wrong := config(kubeconfig(t, "http://127.0.0.1:1"))
	wrong.Context = "other"
	if _, err := Read(t.Context(), wrong); !errors.Is(err, ErrNoConfig) || !strings.Contains(err.Error(), "other") {
		t.Errorf("absent context: error %v", err)
	}
}
