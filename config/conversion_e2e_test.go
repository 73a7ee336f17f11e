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
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// serveConversion answers conversions at an address, again each time it is called.
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

// TestThirdVersion gives LBPeer a version of another shape, as docs/design.md says it is done, and
// works by all three. Where nobody converts, that is told, and other kinds do not notice.
func TestThirdVersion(t *testing.T) {
	server := controlplane.Start(t, "..")
	v := &versions{server: server, admin: newClient(t, server.Admin())}
	v.kubectl(t, "apply", "--server-side", "-k", "crd")
	v.awaitKinds(t)
	before := slices.DeleteFunc(read(t, "testdata/former_objects.yaml"), func(object *unstructured.Unstructured) bool {
		return object.GetKind() != "LBPeer" && object.GetKind() != "VIPPool"
	})
	for _, object := range before {
		v.create(t, object)
	}
	webhook := serveConversion(t, "")
	v.addThird(t, webhook)

	peers := slices.DeleteFunc(slices.Clone(before), func(object *unstructured.Unstructured) bool { return object.GetKind() != "LBPeer" })
	shown := map[string]string{
		"router1": "198.51.100.101", "link-local": "fe80::1%eth0", "gateway": "IPv6", "rack": "198.51.100.0/28",
	}
	eventually(t, "the third version", func(ctx context.Context) error {
		for _, peer := range peers {
			got, err := v.get(ctx, peer, "v1")
			if err != nil {
				return err
			}
			if where, _, _ := unstructured.NestedString(got.Object, "spec", "where"); where != shown[peer.GetName()] {
				return fmt.Errorf("LBPeer %s is %v", peer.GetName(), got.Object)
			}
		}
		return nil
	})
	v.sameMeaning(t, peers)
	v.writeThird(t, peers)
	v.sameMeaning(t, peers)

	address := webhook.Listener.Addr().String()
	webhook.Close()
	v.unattended(t, before)
	serveConversion(t, address)
	eventually(t, "conversion again", func(ctx context.Context) error {
		_, err := v.get(ctx, peers[0], "v1")
		return err
	})
	v.sameMeaning(t, peers)
}

// sameMeaning holds that LBPeers mean what they meant. Types write a duration in their own way, 2m0s
// for 120s, so the texts differ.
func (v *versions) sameMeaning(t *testing.T, peers []*unstructured.Unstructured) {
	t.Helper()
	for _, peer := range peers {
		for _, version := range []string{"v1alpha1", "v1beta1"} {
			got, err := v.get(t.Context(), peer, version)
			if err != nil {
				t.Error(err)
			} else if means, meant := parsed(t, got), parsed(t, peer); !reflect.DeepEqual(means, meant) {
				t.Errorf("LBPeer %s means %+v by %s, meant %+v", peer.GetName(), means, version, meant)
			}
		}
	}
}

func (v *versions) awaitKinds(t *testing.T) {
	t.Helper()
	v.kubectl(t, "wait", "--for=condition=Established", "crd", "--all")
}

// addThird has LBPeer converted, to a version whose types have its schema.
func (v *versions) addThird(t *testing.T, webhook *httptest.Server) {
	t.Helper()
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw})
	v.kubectl(t, "patch", "crd", "lbpeers.millrace.io", "--type=json", "-p", fmt.Sprintf(`[
		{"op": "add", "path": "/spec/versions/-", "value": {
			"name": "v1", "served": true, "storage": false, "subresources": {"status": {}},
			"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		{"op": "replace", "path": "/spec/conversion", "value": {"strategy": "Webhook", "webhook": {
			"conversionReviewVersions": ["v1"],
			"clientConfig": {"url": "%s/convert", "caBundle": %q}}}}]`,
		webhook.URL, base64.StdEncoding.EncodeToString(bundle)))
}

// writeThird writes LBPeers by the third version: those of before without a change, and a new one.
func (v *versions) writeThird(t *testing.T, peers []*unstructured.Unstructured) {
	for _, peer := range peers {
		v.kubectl(t, "label", "lbpeers.v1.millrace.io/"+peer.GetName(), "third=true")
	}
	peer := objectOf("LBPeer", "of-tomorrow", map[string]any{
		"where": "fe80::7%eth7", "timers": map[string]any{"hold": "9s"},
		"others": map[string]any{"localASN": int64(64513), "peerASN": int64(64512)},
	})
	peer.SetAPIVersion("millrace.io/v1")
	if err := v.admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(peer), client.FieldOwner("third")); err != nil {
		t.Fatal(err)
	}
	got, err := v.get(t.Context(), peer, "v1beta1")
	if err != nil {
		t.Fatal(err)
	}
	spec := got.Object["spec"].(map[string]any)
	if !reflect.DeepEqual(spec["router"], map[string]any{"address": "fe80::7", "interface": "eth7"}) || spec["holdTime"] != "9s" || spec["peerAddress"] != nil {
		t.Errorf("what was written as v1 is %v as v1beta1", spec)
	}
}

// unattended holds what is told where nobody converts, and that all else goes on.
func (v *versions) unattended(t *testing.T, before []*unstructured.Unstructured) {
	for _, object := range before {
		peer := object.GetKind() == "LBPeer"
		for version, converted := range map[string]bool{"v1alpha1": false, "v1beta1": peer, "v1": peer} {
			if version == "v1" && !peer {
				continue
			}
			eventually(t, object.GetName()+" by "+version, func(ctx context.Context) error {
				_, err := v.get(ctx, object, version)
				switch {
				case !converted:
					return err
				case err == nil:
					return errors.New("converted by nobody")
				case !strings.Contains(err.Error(), "conversion webhook for millrace.io/v1beta1, Kind=LBPeer failed"):
					return fmt.Errorf("not told: %w", err)
				}
				return nil
			})
		}
	}
	stored, err := v.get(t.Context(), before[slices.IndexFunc(before, func(o *unstructured.Unstructured) bool { return o.GetKind() == "LBPeer" })], "v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	stored.SetLabels(map[string]string{"written": "unattended"})
	if err := v.admin.Update(t.Context(), stored); err != nil {
		t.Errorf("writing what is stored as it is written: %v", err)
	}
	pool := objectOf("VIPPool", "unattended", map[string]any{"addresses": []any{"192.0.2.0/24"}})
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "unattended"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	for _, object := range []client.Object{pool, service} {
		if err := v.admin.Create(t.Context(), object); err != nil {
			t.Error(err)
		} else if err := v.admin.Delete(t.Context(), object); err != nil {
			t.Error(err)
		}
	}
}
