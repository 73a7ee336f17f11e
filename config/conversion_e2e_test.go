// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package config

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

type nextVersion struct {
	server *controlplane.Server
	admin  client.Client
}

// TestNextVersion adds a version of LBPeer as in docs/design/api-versions.md. While the conversion webhook
// is unavailable, requests for LBPeers fail with its name, and other kinds are unaffected.
func TestNextVersion(t *testing.T) {
	server := controlplane.Start(t, "..")
	n := &nextVersion{server: server, admin: newClient(t, server.Admin())}
	n.kubectl(t, "apply", "--server-side", "-k", "crd")
	n.kubectl(t, "wait", "--for=condition=Established", "crd", "--all")
	peers, where := n.createPeers(t)
	webhook := serveConversion(t, "")
	n.add(t, webhook)

	eventually(t, "version v1", func(ctx context.Context) error {
		for _, peer := range peers {
			got, err := n.get(ctx, peer, "v1")
			if err != nil {
				return err
			}
			if text, _, _ := unstructured.NestedString(got.Object, "spec", "where"); text != where[peer.GetName()] {
				return fmt.Errorf("LBPeer %s is %v", peer.GetName(), got.Object)
			}
		}
		return nil
	})
	n.write(t, peers)
	n.sameMeaning(t, peers)

	address := webhook.Listener.Addr().String()
	webhook.Close()
	n.unavailable(t, peers[0])
	serveConversion(t, address)
	eventually(t, "the webhook is available again", func(ctx context.Context) error {
		_, err := n.get(ctx, peers[0], "v1")
		return err
	})
	n.sameMeaning(t, peers)
	n.store(t, peers)
}

func (n *nextVersion) createPeers(t *testing.T) (peers []*unstructured.Unstructured, where map[string]string) {
	where = map[string]string{}
	for _, peer := range []struct {
		name, where string
		router      map[string]any
	}{
		{"router1", "198.51.100.101", map[string]any{"address": "198.51.100.101"}},
		{"link-local", "fe80::1%eth0", map[string]any{"address": "fe80::1", "interface": "eth0"}},
		{"gateway", "IPv6", map[string]any{"gateway": "IPv6"}},
		{"rack", "198.51.100.0/28", map[string]any{"range": "198.51.100.0/28", "maxPeers": int64(4)}},
	} {
		object := objectOf("LBPeer", peer.name, map[string]any{
			"router": peer.router, "peerASN": int64(64512), "localASN": int64(64513),
			"holdTime": "120s", "keepaliveTime": "3s", "multihopTTL": int64(3),
		})
		where[peer.name] = peer.where
		if err := n.admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		peers = append(peers, object)
	}
	return peers, where
}

// serveConversion serves the conversion webhook at an address, or at any address if it is empty.
func serveConversion(t *testing.T, address string) *httptest.Server {
	t.Helper()
	handler, err := converter()
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/convert", handler)
	server := httptest.NewUnstartedServer(mux)
	if address != "" {
		server.Listener.Close()
		eventually(t, "listening at "+address, func(context.Context) error {
			server.Listener, err = net.Listen("tcp", address)
			return err
		})
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func (n *nextVersion) add(t *testing.T, webhook *httptest.Server) {
	t.Helper()
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw})
	n.kubectl(t, "patch", "crd", "lbpeers.millrace.io", "--type=json", "-p", fmt.Sprintf(`[
		{"op": "add", "path": "/spec/versions/-", "value": {
			"name": "v1", "served": true, "storage": false, "subresources": {"status": {}},
			"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		{"op": "add", "path": "/spec/conversion", "value": {"strategy": "Webhook", "webhook": {
			"conversionReviewVersions": ["v1"],
			"clientConfig": {"url": "%s/convert", "caBundle": %q}}}}]`,
		webhook.URL, base64.StdEncoding.EncodeToString(bundle)))
}

func (n *nextVersion) kubectl(t *testing.T, arguments ...string) {
	t.Helper()
	if _, err := n.server.Kubectl(t.Context(), arguments...); err != nil {
		t.Fatal(err)
	}
}

func (n *nextVersion) get(ctx context.Context, object *unstructured.Unstructured, version string) (*unstructured.Unstructured, error) {
	got := &unstructured.Unstructured{}
	got.SetAPIVersion("millrace.io/" + version)
	got.SetKind(object.GetKind())
	return got, n.admin.Get(ctx, client.ObjectKeyFromObject(object), got)
}

// sameMeaning compares parsed peers, because durations may be formatted differently.
func (n *nextVersion) sameMeaning(t *testing.T, peers []*unstructured.Unstructured) {
	t.Helper()
	for _, peer := range peers {
		got, err := n.get(t.Context(), peer, "v1beta1")
		if err != nil {
			t.Error(err)
		} else if current, original := parsed(t, got), parsed(t, peer); !reflect.DeepEqual(current, original) {
			t.Errorf("LBPeer %s is %+v, was %+v", peer.GetName(), current, original)
		}
	}
}

func parsed(t *testing.T, object *unstructured.Unstructured) desired.Peer {
	t.Helper()
	peer := &millracev1beta1.LBPeer{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, peer); err != nil {
		t.Fatal(err)
	}
	result, problems := desired.ParsePeer(peer)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return result
}

func (n *nextVersion) write(t *testing.T, peers []*unstructured.Unstructured) {
	for _, peer := range peers {
		n.kubectl(t, "label", "lbpeers.v1.millrace.io/"+peer.GetName(), "written=v1")
	}
	peer := objectOf("LBPeer", "created-by-v1", map[string]any{
		"where": "fe80::7%eth7", "timers": map[string]any{"hold": "9s"},
		"unchanged": map[string]any{"localASN": int64(64513), "peerASN": int64(64512)},
	})
	peer.SetAPIVersion("millrace.io/v1")
	if err := n.admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(peer), client.FieldOwner("v1")); err != nil {
		t.Fatal(err)
	}
	got, err := n.get(t.Context(), peer, "v1beta1")
	if err != nil {
		t.Fatal(err)
	}
	spec := got.Object["spec"].(map[string]any)
	if !reflect.DeepEqual(spec["router"], map[string]any{"address": "fe80::7", "interface": "eth7"}) || spec["holdTime"] != "9s" {
		t.Errorf("an LBPeer created by v1 is %v by v1beta1", spec)
	}
}

// unavailable verifies which requests fail while the webhook is unavailable.
func (n *nextVersion) unavailable(t *testing.T, peer *unstructured.Unstructured) {
	eventually(t, "v1 without the webhook", func(ctx context.Context) error {
		switch _, err := n.get(ctx, peer, "v1"); {
		case err == nil:
			return errors.New("converted without the webhook")
		case !strings.Contains(err.Error(), "conversion webhook for millrace.io/v1beta1, Kind=LBPeer failed"):
			return fmt.Errorf("an error that does not name the webhook: %w", err)
		}
		return nil
	})
	stored, err := n.get(t.Context(), peer, "v1beta1")
	if err != nil {
		t.Fatal(err)
	}
	stored.SetLabels(map[string]string{"written": "v1beta1"})
	if err := n.admin.Update(t.Context(), stored); err != nil {
		t.Errorf("writing the stored version: %v", err)
	}
	pool := objectOf("VIPPool", "unaffected", map[string]any{"addresses": []any{"192.0.2.0/24"}})
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "unaffected"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	for _, object := range []client.Object{pool, service} {
		if err := n.admin.Create(t.Context(), object); err != nil {
			t.Error(err)
		} else if err := n.admin.Delete(t.Context(), object); err != nil {
			t.Error(err)
		}
	}
}

// store stores LBPeers as v1, as v1beta1 again, and then removes v1.
func (n *nextVersion) store(t *testing.T, peers []*unstructured.Unstructured) {
	for number, version := range []string{"v1beta1", "v1"} {
		other := 1 - number
		n.kubectl(t, "patch", "crd", "lbpeers.millrace.io", "--type=json", "-p", fmt.Sprintf(`[
			{"op": "replace", "path": "/spec/versions/%d/storage", "value": false},
			{"op": "replace", "path": "/spec/versions/%d/storage", "value": true}]`, number, other))
		removal := fmt.Sprintf(`[{"op": "remove", "path": "/spec/versions/%d"}]`, number)
		eventually(t, "the API server retains stored version "+version, func(ctx context.Context) error {
			_, err := n.server.Kubectl(ctx, "patch", "crd", "lbpeers.millrace.io", "--dry-run=server", "--type=json", "-p", removal)
			if err == nil || !strings.Contains(err.Error(), "storedVersions") {
				return fmt.Errorf("removing %s from the CRD: %w", version, err)
			}
			return nil
		})
		n.rewrite(t)
		n.kubectl(t, "patch", "crd", "lbpeers.millrace.io", "--dry-run=server", "--type=json", "-p", removal)
		n.sameMeaning(t, peers)
	}
	n.kubectl(t, "patch", "crd", "lbpeers.millrace.io", "--type=json", "-p", `[{"op": "remove", "path": "/spec/versions/1"}]`)
	n.sameMeaning(t, peers)
}

func (n *nextVersion) rewrite(t *testing.T) {
	t.Helper()
	page, err := os.ReadFile("../docs/design/api-versions.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, found := strings.Cut(string(page), "\n\n    kubectl get crds")
	script, _, ended := strings.Cut(script, "\n\n")
	if !found || !ended {
		t.Fatal("the page has no command")
	}
	kubectl, err := n.server.KubectlProgram(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", "kubectl get crds"+script)
	command.Env = append(os.Environ(), "PATH="+filepath.Dir(kubectl)+":"+os.Getenv("PATH"))
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
}
