// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package config

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// TestDecodableRoutes rejects HTTPRoutes of the experimental CRD that Go clients cannot decode.
func TestDecodableRoutes(t *testing.T) {
	server := controlplane.Start(t, "..")
	admin := newClient(t, server.Admin())
	install(t, server, admin, "gateway-api/experimental")
	for _, object := range read(t, "gateway/route_policy.yaml") {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	route := func(name string, size int64) *unstructured.Unstructured {
		filter := map[string]any{"type": "ExternalAuth", "externalAuth": map[string]any{
			"protocol": "HTTP", "http": map[string]any{"path": "/check"}, "backendRef": map[string]any{"name": "auth", "port": int64(80)},
			"forwardBody": map[string]any{"maxSize": size},
		}}
		rule := map[string]any{"filters": []any{filter}}
		if name == "backend" {
			rule = map[string]any{"backendRefs": []any{map[string]any{"name": "web", "port": int64(80), "filters": []any{filter}}}}
		}
		object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"rules": []any{rule}}}}
		object.SetAPIVersion("gateway.networking.k8s.io/v1")
		object.SetKind("HTTPRoute")
		object.SetNamespace("default")
		object.SetName(name)
		return object
	}
	create := func(ctx context.Context, object *unstructured.Unstructured) error {
		if err := admin.Create(ctx, object.DeepCopy()); err != nil {
			return err
		}
		return admin.Delete(ctx, object)
	}
	for _, name := range []string{"rule", "backend"} {
		// The policy is in force after the first rejection.
		eventually(t, "refusing "+name, func(ctx context.Context) error {
			switch err := create(ctx, route(name, 65536)); {
			case err == nil:
				return errors.New("not refused")
			case !apierrors.IsInvalid(err), !strings.Contains(err.Error(), "maxSize"):
				return fmt.Errorf("not refused by the policy: %w", err)
			}
			return nil
		})
		if err := create(t.Context(), route(name, 65535)); err != nil {
			t.Errorf("%s: 65535 is refused: %v", name, err)
		}
	}
}
