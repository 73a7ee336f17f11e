// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const (
	operatorUser     = "system:serviceaccount:millrace-system:millrace-operator"
	garbageCollector = "system:serviceaccount:kube-system:generic-garbage-collector"
)

func testPoolPolicies(t *testing.T, server *controlplane.Server, admin client.Client) {
	t.Run("confirmed", func(t *testing.T) { testConfirmedRemoval(t, admin) })
	t.Run("garbage collector", func(t *testing.T) { testCollectedPool(t, server, admin) })
	t.Run("all at once", func(t *testing.T) { testPoolsInUse(t, admin) })
	t.Run("claims by the operator", func(t *testing.T) { testOperatorsClaims(t, server) })
	t.Run("overlapping", func(t *testing.T) { testOverlappingPools(t, server) })
	t.Run("GitOps", func(t *testing.T) { testPoolChangesByGitOps(t, server, admin) })
	t.Run("defaults", func(t *testing.T) { testPoolDefaults(t, server, admin) })
}

func newPool(name string, addresses ...string) *millracev1beta1.VIPPool {
	return &millracev1beta1.VIPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       millracev1beta1.VIPPoolSpec{Addresses: addresses},
	}
}

// inUse creates a pool and a VIP of it, and waits until the API server's policies observe both.
func inUse(t *testing.T, admin client.Client) (*millracev1beta1.VIPPool, *millracev1beta1.VIP) {
	t.Helper()
	pool := newPool("used", "192.0.2.0/24")
	vip := &millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: "192.0.2.7"},
		Spec:       millracev1beta1.VIPSpec{Address: "192.0.2.7", Pool: "used"},
	}
	for _, object := range []client.Object{pool, vip} {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	vip.Status.Services = "default/web"
	if err := admin.Status().Update(t.Context(), vip); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a refusal that names the VIP and its Service", func(ctx context.Context) error {
		return refusal(admin.Delete(ctx, pool, client.DryRunAll), "192.0.2.7 of default/web")
	})
	return pool, vip
}

func refusal(err error, text string) error {
	if err == nil {
		return errors.New("not refused")
	}
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("not refused with %q: %w", text, err)
	}
	return nil
}

func testConfirmedRemoval(t *testing.T, admin client.Client) {
	pool, vip := inUse(t, admin)
	defer removeAll(t, admin, []client.Object{vip})
	pool.Labels = map[string]string{"team": "web"}
	pool.Spec.Priority = 7
	if err := admin.Update(t.Context(), pool); err != nil {
		t.Errorf("a change of other fields: %v", err)
	}
	pool.Annotations = map[string]string{millracev1beta1.AnnotationConfirmRemoval: ""}
	pool.Spec.Addresses = []string{"192.0.2.128/25"}
	if err := admin.Update(t.Context(), pool); err != nil {
		t.Errorf("confirmed in the same write: %v", err)
	}
	if err := admin.Delete(t.Context(), pool); err != nil {
		t.Errorf("confirmed before: %v", err)
	}
}

// testCollectedPool deletes a pool as the garbage collector does after its owner is gone.
func testCollectedPool(t *testing.T, server *controlplane.Server, admin client.Client) {
	pool, vip := inUse(t, admin)
	defer removeAll(t, admin, []client.Object{vip})
	collector := newClient(t, as(server, garbageCollector))
	if err := collector.Delete(t.Context(), pool); err != nil {
		t.Error(err)
	}
}

func testPoolsInUse(t *testing.T, admin client.Client) {
	pool, vip := inUse(t, admin)
	defer removeAll(t, admin, []client.Object{vip, pool})
	err := admin.DeleteAllOf(t.Context(), pool, client.DryRunAll)
	if err := refusal(err, "192.0.2.7 of default/web"); err != nil {
		t.Error(err)
	}
}

// testOperatorsClaims writes claims as the operator, which alone may do so.
func testOperatorsClaims(t *testing.T, server *controlplane.Server) {
	ports := []millracev1beta1.ClaimedPort{{Port: 80, Protocol: corev1.ProtocolTCP}}
	vip := &millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: "192.0.2.1"},
		Spec: millracev1beta1.VIPSpec{Address: "192.0.2.1", Claims: []millracev1beta1.VIPClaim{
			{Namespace: "default", Name: "web", Ports: ports}, {Namespace: "default", Name: "api", Ports: ports},
		}},
	}
	for user, refused := range map[string]bool{operatorUser: false, "": true} {
		config := server.Admin()
		if user != "" {
			config = as(server, user)
		}
		if err := newClient(t, config).Create(t.Context(), vip.DeepCopy(), client.DryRunAll); (err != nil) != refused {
			t.Errorf("one port in two claims, written by %q: %v", user, err)
		}
	}
}

// testOverlappingPools expects a warning only if the write adds an overlap.
func testOverlappingPools(t *testing.T, server *controlplane.Server) {
	admin, told := newWarningClient(t, server)
	first, second := newPool("first", "192.0.2.0/24", "198.51.100.0/24"), newPool("second", "198.51.100.0/25", "192.0.2.0/25")
	defer removeAll(t, admin, []client.Object{first, second})
	for _, pool := range []client.Object{first, second} {
		if err := admin.Create(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a warning of an overlap", func(ctx context.Context) error {
		told.Take()
		err := admin.Create(ctx, newPool("third", "192.0.2.0/28"), client.DryRunAll)
		if text := told.Take(); err == nil && (!strings.Contains(text, `"first"`) || !strings.Contains(text, `"second"`)) {
			err = fmt.Errorf("the warnings are %q", text)
		}
		return err
	})
	operator := newClient(t, as(server, operatorUser))
	status := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"assigned":1,"free":2}}`))
	if err := operator.Status().Patch(t.Context(), second.DeepCopy(), status); err != nil {
		t.Errorf("the operator's report: %v", err)
	}
	for _, change := range []func(*millracev1beta1.VIPPool){
		func(pool *millracev1beta1.VIPPool) { pool.Labels = map[string]string{"team": "web"} },
		func(pool *millracev1beta1.VIPPool) { pool.Spec.Addresses = []string{"203.0.112.0/24", "192.0.2.0/25"} },
		func(pool *millracev1beta1.VIPPool) { pool.Spec.Reserved = []string{"192.0.2.1"} },
	} {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(second), second); err != nil {
			t.Fatal(err)
		}
		change(second)
		told.Take()
		if err := admin.Update(t.Context(), second); err != nil || told.Take() != "" {
			t.Errorf("a change that adds no overlap is rejected or warned of: %v", err)
		}
	}
}

// testPoolChangesByGitOps splits, merges and renames pools, first as a dry run of all objects, as Flux
// does.
func testPoolChangesByGitOps(t *testing.T, server *controlplane.Server, admin client.Client) {
	document := func(name, addresses, annotations string) string {
		return fmt.Sprintf("apiVersion: millrace.io/v1beta1\nkind: VIPPool\nmetadata: {name: %s, annotations: {%s}}\nspec: {addresses: [%s]}\n---\n",
			name, annotations, addresses)
	}
	const all, one, rest = "198.19.8.0/24", "198.19.8.129", "198.19.8.0-198.19.8.128, 198.19.8.130-198.19.8.255"
	const confirmed = `millrace.io/confirm-removal: ""`
	vip := &millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: one}, Spec: millracev1beta1.VIPSpec{Address: one, Pool: "lan"},
	}
	pools := []client.Object{newPool("lan"), newPool("gateway"), newPool("renamed")}
	defer func() { removeAll(t, admin, append([]client.Object{vip}, pools...)) }()
	for _, step := range []struct{ name, manifest string }{
		{"create", document("lan", all, "")},
		{"split", document("gateway", one+"/32", "") + document("lan", rest, "")},
		{"merge", document("lan", all, "")},
		{"split in use", document("gateway", one+"/32", "") + document("lan", rest, confirmed)},
		{"rename", document("renamed", rest, "")},
	} {
		if step.name == "split in use" {
			if err := admin.Create(t.Context(), vip); err != nil {
				t.Fatal(err)
			}
		}
		manifest := filepath.Join(t.TempDir(), "pools.yaml")
		if err := os.WriteFile(manifest, []byte(step.manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, mode := range []string{"server", "none"} {
			if output, err := server.Kubectl(t.Context(), "apply", "--server-side", "--dry-run="+mode, "-f", manifest); err != nil {
				t.Fatalf("%s, dry run %s: %v: %s", step.name, mode, err, output)
			}
		}
	}
}

// testPoolDefaults installs config/pool-defaults, which sets spec.avoid of new pools without it.
func testPoolDefaults(t *testing.T, server *controlplane.Server, admin client.Client) {
	kubectl := func(arguments ...string) {
		t.Helper()
		if output, err := server.Kubectl(t.Context(), arguments...); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	avoids := func(pool *unstructured.Unstructured) any { return pool.Object["spec"].(map[string]any)["avoid"] }
	existing := objectOf("VIPPool", "existing", map[string]any{"addresses": []any{"198.19.0.0/24"}})
	defer removeAll(t, admin, []client.Object{existing})
	if err := admin.Create(t.Context(), existing); err != nil {
		t.Fatal(err)
	}
	kubectl("apply", "--server-side", "-f", "pool-defaults/avoid.yaml")
	defer kubectl("delete", "-f", "pool-defaults/avoid.yaml")

	all := []any{"Network", "Broadcast", "SubnetRouterAnycast"}
	for _, test := range []struct{ given, want any }{{nil, all}, {[]any{}, []any{}}, {[]any{"Network"}, []any{"Network"}}} {
		spec := map[string]any{"addresses": []any{"198.19.1.0/24"}}
		if test.given != nil {
			spec["avoid"] = test.given
		}
		eventually(t, "the policy", func(ctx context.Context) error {
			pool := objectOf("VIPPool", "new", runtime.DeepCopyJSON(spec))
			if err := admin.Create(ctx, pool, client.DryRunAll); err != nil {
				return err
			}
			if got := avoids(pool); !reflect.DeepEqual(got, test.want) {
				return fmt.Errorf("a pool created with avoid %v has %v, want %v", test.given, got, test.want)
			}
			return nil
		})
	}
	existing.SetAnnotations(map[string]string{"note": "1"})
	if err := admin.Update(t.Context(), existing); err != nil || avoids(existing) != nil {
		t.Errorf("an existing pool avoids %v after an update: %v", avoids(existing), err)
	}
	// A manifest without the field, applied again, causes no drift.
	manifest := filepath.Join(t.TempDir(), "pool.yaml")
	text := "{apiVersion: millrace.io/v1beta1, kind: VIPPool, metadata: {name: applied}, spec: {addresses: [198.19.2.0/24]}}"
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, side := range []string{"--server-side=false", "--server-side"} {
		kubectl("apply", side, "-f", manifest)
		kubectl("apply", side, "-f", manifest)
		kubectl("diff", side, "-f", manifest)
		pool := objectOf("VIPPool", "applied", nil)
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil || !reflect.DeepEqual(avoids(pool), all) {
			t.Errorf("a pool applied with %s avoids %v: %v", side, avoids(pool), err)
		}
		kubectl("delete", "-f", manifest)
	}
}
