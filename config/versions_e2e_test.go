// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// testRouterColumn has kubectl show where routers are, by the names of now and by the previous
// ones.
func testRouterColumn(t *testing.T, server *controlplane.Server, admin client.Client) {
	routers := map[string]struct{ spec, shown string }{
		"address":      {`{"router":{"address":"fe80::1","interface":"eth0"}}`, "fe80::1"},
		"gateway":      {`{"router":{"gateway":"IPv6"}}`, "IPv6"},
		"range":        {`{"router":{"range":"198.51.100.0/28","maxPeers":4}}`, "198.51.100.0/28"},
		"peer-address": {`{"peerAddress":"192.0.2.1"}`, "192.0.2.1"},
		"peer-gateway": {`{"peerGateway":"IPv4"}`, "IPv4"},
		"peer-range":   {`{"peerRange":"2001:db8::/64","maxPeers":4}`, "2001:db8::/64"},
	}
	var objects []client.Object
	for name, router := range routers {
		object := objectOf("LBPeer", name, map[string]any{"localASN": 64513, "peerASN": 64512})
		fields := map[string]any{}
		if err := json.Unmarshal([]byte(router.spec), &fields); err != nil {
			t.Fatal(err)
		}
		for key, value := range fields {
			object.Object["spec"].(map[string]any)[key] = value
		}
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
	defer removeAll(t, admin, objects)
	for name, router := range routers {
		output, err := server.Kubectl(t.Context(), "get", "lbpeer", name, "--no-headers")
		if err != nil {
			t.Fatal(err)
		}
		if columns := strings.Fields(string(output)); len(columns) < 2 || columns[1] != router.shown {
			t.Errorf("kubectl shows %q of {%s}, want the router %s", output, router.spec, router.shown)
		}
	}
}

// versions is an API server that is upgraded and downgraded, with kubectl.
type versions struct {
	server *controlplane.Server
	admin  client.Client
}

// TestVersions upgrades an API server from the CRDs of before, works with both versions, and goes
// back.
func TestVersions(t *testing.T) {
	server := controlplane.Start(t, "..")
	v := &versions{server: server, admin: newClient(t, server.Admin())}
	v.kubectl(t, "apply", "--server-side", "-f", "testdata/former_crds.yaml")
	before := read(t, "testdata/former_objects.yaml")
	for _, object := range before {
		v.create(t, object)
	}
	v.kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", "crd")
	v.awaitServed(t, "v1beta1")
	v.kubectl(t, "apply", "--server-side", "-k", "policy")

	t.Run("objects of before", func(t *testing.T) { v.unchanged(t, before, "v1alpha1", "v1beta1") })
	t.Run("both versions are one", v.same)
	t.Run("stored version", v.stored)
	t.Run("kubectl", v.byKubectl)
	t.Run("managed fields", v.managed)
	t.Run("policies", v.refused)
	t.Run("pools avoid", v.avoid)
	t.Run("objects of before, after", func(t *testing.T) { v.unchanged(t, before, "v1alpha1", "v1beta1") })
	t.Run("storage", func(t *testing.T) { v.migrated(t, before) })
	t.Run("back", func(t *testing.T) { v.back(t, before) })
}

func (v *versions) kubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	output, err := v.server.Kubectl(t.Context(), arguments...)
	if err != nil {
		t.Fatal(err)
	}
	return string(output)
}

// create makes an object with its status, once its kind is served.
func (v *versions) create(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	created := object.DeepCopy()
	eventually(t, "creating "+object.GetKind()+" "+object.GetName(), func(ctx context.Context) error {
		return v.admin.Create(ctx, created)
	})
	if status, found := object.Object["status"]; found {
		created.Object["status"] = status
		if err := v.admin.Status().Update(t.Context(), created); err != nil {
			t.Fatal(err)
		}
	}
	object.SetUID(created.GetUID())
	if created.Object["spec"] != nil {
		// With its defaults.
		object.Object["spec"] = created.Object["spec"]
	}
}

func (v *versions) awaitServed(t *testing.T, version string) {
	t.Helper()
	eventually(t, version, func(ctx context.Context) error {
		output, err := v.server.Kubectl(ctx, "get", "vippools."+version+".millrace.io", "-o", "name")
		if err == nil && !strings.Contains(string(output), "vippool") {
			err = fmt.Errorf("kubectl gets %q", output)
		}
		return err
	})
}

func (v *versions) get(ctx context.Context, object *unstructured.Unstructured, version string) (*unstructured.Unstructured, error) {
	got := &unstructured.Unstructured{}
	got.SetAPIVersion("millrace.io/" + version)
	got.SetKind(object.GetKind())
	return got, v.admin.Get(ctx, client.ObjectKeyFromObject(object), got)
}

// unchanged holds that objects are still what they were, in each version, and mean the same.
func (v *versions) unchanged(t *testing.T, objects []*unstructured.Unstructured, versions ...string) {
	t.Helper()
	for _, want := range objects {
		for _, version := range versions {
			got, err := v.get(t.Context(), want, version)
			if err != nil {
				t.Error(err)
				continue
			}
			if got.GetUID() != want.GetUID() || !equalJSON(got.Object["spec"], want.Object["spec"]) ||
				want.Object["status"] != nil && !equalJSON(got.Object["status"], want.Object["status"]) {
				t.Errorf("%s %s is %v by %s, was %v", want.GetKind(), want.GetName(), got.Object, version, want.Object)
			}
			if want.GetKind() == "LBPeer" && !reflect.DeepEqual(parsed(t, got), parsed(t, want)) {
				t.Errorf("LBPeer %s means %+v, meant %+v", want.GetName(), parsed(t, got), parsed(t, want))
			}
		}
	}
}

func parsed(t *testing.T, object *unstructured.Unstructured) desired.Peer {
	t.Helper()
	peer := &millracev1alpha1.LBPeer{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, peer); err != nil {
		t.Fatal(err)
	}
	result, problems := desired.ParsePeer(peer)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	result.Fields = desired.RouterFields{}
	return result
}

// equalJSON compares what may be int64 on one side and float64 on the other.
func equalJSON(a, b any) bool {
	first, errA := json.Marshal(a)
	second, errB := json.Marshal(b)
	return errA == nil && errB == nil && string(first) == string(second)
}

// kinds are the CRDs as the API server has them.
func (v *versions) kinds(t *testing.T) []unstructured.Unstructured {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("apiextensions.k8s.io/v1")
	list.SetKind("CustomResourceDefinitionList")
	if err := v.admin.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 7 {
		t.Fatalf("%d CRDs, want 7", len(list.Items))
	}
	return list.Items
}

// same holds that nothing differs between the versions of a kind but the name, and that both are
// served.
func (v *versions) same(t *testing.T) {
	for _, kind := range v.kinds(t) {
		all, _, err := unstructured.NestedSlice(kind.Object, "spec", "versions")
		if err != nil || len(all) != 2 {
			t.Fatalf("%s has the versions %v, %v", kind.GetName(), all, err)
		}
		strategy, _, _ := unstructured.NestedString(kind.Object, "spec", "conversion", "strategy")
		if strategy != "None" {
			t.Errorf("%s is converted by %q", kind.GetName(), strategy)
		}
		first, second := all[0].(map[string]any), all[1].(map[string]any)
		if first["name"] != "v1alpha1" || second["name"] != "v1beta1" || first["storage"] != true || second["storage"] != false ||
			first["served"] != true || second["served"] != true {
			t.Errorf("%s has the versions %v and %v", kind.GetName(), first["name"], second["name"])
		}
		first["name"], first["storage"] = second["name"], second["storage"]
		if !equalJSON(first, second) {
			t.Errorf("the versions of %s differ", kind.GetName())
		}
	}
}

// stored holds that a downgrade finds a version that it knows.
func (v *versions) stored(t *testing.T) {
	for _, kind := range v.kinds(t) {
		if got, _, _ := unstructured.NestedStringSlice(kind.Object, "status", "storedVersions"); len(got) != 1 || got[0] != "v1alpha1" {
			t.Errorf("%s is stored as %v", kind.GetName(), got)
		}
	}
}

const poolManifest = `
apiVersion: millrace.io/%s
kind: VIPPool
metadata: {name: by-kubectl}
spec: {addresses: [192.0.2.0/25], avoid: [Network], priority: %d}
`

// byKubectl works with a pool as people do, by one version and by the other.
func (v *versions) byKubectl(t *testing.T) {
	if got := v.kubectl(t, "get", "vippool", "all", "-o", "jsonpath={.apiVersion}"); got != "millrace.io/v1beta1" {
		t.Errorf("kubectl prefers %s", got)
	}
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		for _, field := range []string{"vippool.spec.avoid", "lbpeer.spec.router.range", "lbnodereport.status.vips"} {
			if got := v.kubectl(t, "explain", field, "--api-version=millrace.io/"+version); !strings.Contains(got, "DESCRIPTION") {
				t.Errorf("kubectl explain %s of %s: %s", field, version, got)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "pool.yaml")
	manifest := func(version string, priority int) string {
		if err := os.WriteFile(file, fmt.Appendf(nil, poolManifest, version, priority), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for _, side := range [][]string{{"--server-side=false"}, {"--server-side", "--force-conflicts"}} {
		for priority, version := range []string{"v1alpha1", "v1beta1", "v1alpha1", "v1beta1"} {
			v.kubectl(t, append([]string{"apply", "-f", manifest(version, priority)}, side...)...)
			// What is applied is what is there: nothing drifts, whichever version is compared.
			for _, compared := range []string{"v1alpha1", "v1beta1"} {
				if output, err := v.server.Kubectl(t.Context(), append([]string{"diff", "-f", manifest(compared, priority)}, side...)...); err != nil {
					t.Errorf("applied by %s, compared by %s, %s: %v: %s", version, compared, side[0], err, output)
				}
			}
		}
		// kubectl apply keeps what it was given, with its version, in an annotation.
		v.kubectl(t, "delete", "-f", file)
	}
	v.kubectl(t, "apply", "-f", manifest("v1beta1", 1))
	for version, want := range map[string]string{"v1alpha1": "11", "v1beta1": "12"} {
		t.Setenv("KUBE_EDITOR", "sed -i s/priority:.*/priority:\\ "+want+"/")
		v.kubectl(t, "edit", "vippools."+version+".millrace.io/by-kubectl")
		if got := v.kubectl(t, "get", "vippool", "by-kubectl", "-o", "jsonpath={.spec.priority}"); got != want {
			t.Errorf("after kubectl edit by %s the priority is %s, want %s", version, got, want)
		}
	}
	v.kubectl(t, "delete", "-f", manifest("v1alpha1", 1))
}

// managed has two people own fields of a pool, each by another version.
func (v *versions) managed(t *testing.T) {
	apply := func(version, owner string, spec map[string]any) error {
		pool := objectOf("VIPPool", "owned", spec)
		pool.SetAPIVersion("millrace.io/" + version)
		return v.admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(pool), client.FieldOwner(owner))
	}
	if err := apply("v1alpha1", "former", map[string]any{"addresses": []any{"192.0.2.128/25"}, "priority": int64(1)}); err != nil {
		t.Fatal(err)
	}
	if err := apply("v1beta1", "present", map[string]any{"priority": int64(2)}); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `"former"`) {
		t.Errorf("a field of another owner and version: %v", err)
	}
	if err := apply("v1beta1", "present", map[string]any{"reserved": []any{"192.0.2.129"}}); err != nil {
		t.Error(err)
	}
	// Who no longer applies a field takes it away, in the other version, too.
	if err := apply("v1beta1", "former", map[string]any{"addresses": []any{"192.0.2.128/25"}}); err != nil {
		t.Error(err)
	}
	pool, err := v.get(t.Context(), objectOf("VIPPool", "owned", nil), "v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	spec := pool.Object["spec"].(map[string]any)
	if spec["priority"] != int64(0) || !reflect.DeepEqual(spec["reserved"], []any{"192.0.2.129"}) {
		t.Errorf("the pool is %v", spec)
	}
	for _, entry := range pool.GetManagedFields() {
		if entry.APIVersion != "millrace.io/v1beta1" {
			t.Errorf("%s owns fields by %s", entry.Manager, entry.APIVersion)
		}
	}
	if err := v.admin.Delete(t.Context(), pool); err != nil {
		t.Error(err)
	}
}

// refused holds that rules and policies look at both versions.
func (v *versions) refused(t *testing.T) {
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		for _, bad := range []struct {
			object *unstructured.Unstructured
			text   string
		}{
			{objectOf("VIPPool", "overlap", map[string]any{"addresses": []any{"203.0.113.64/26"}}), `VIPPool "public"`},
			{objectOf("LBPeer", "nowhere", map[string]any{"localASN": int64(1), "peerASN": int64(2)}), "give router"},
			{objectOf("VIP", "edge", map[string]any{"address": "203.0.113.9"}), "the name of a VIP is its address"},
		} {
			bad.object.SetAPIVersion("millrace.io/" + version)
			eventually(t, "a refusal by "+version, func(ctx context.Context) error {
				err := v.admin.Create(ctx, bad.object.DeepCopy(), client.DryRunAll)
				if err == nil {
					return errors.New("not refused")
				}
				if !strings.Contains(err.Error(), bad.text) {
					return fmt.Errorf("refused without %q: %w", bad.text, err)
				}
				return nil
			})
		}
	}
}

// avoid holds that a pool of v1beta1 avoids special addresses, where it does not say otherwise, and
// that no other pool changes.
func (v *versions) avoid(t *testing.T) {
	v.kubectl(t, "apply", "--server-side", "-f", "pool-defaults/avoid.yaml")
	pool := func(version string, number int, avoid any) *unstructured.Unstructured {
		spec := map[string]any{"addresses": []any{fmt.Sprintf("198.19.%d.0/24", number)}}
		if avoid != nil {
			spec["avoid"] = avoid
		}
		object := objectOf("VIPPool", fmt.Sprintf("avoids-%d", number), spec)
		object.SetAPIVersion("millrace.io/" + version)
		return object
	}
	all := []any{"Network", "Broadcast", "SubnetRouterAnycast"}
	eventually(t, "the policy", func(ctx context.Context) error {
		object := pool("v1beta1", 0, nil)
		if err := v.admin.Create(ctx, object, client.DryRunAll); err != nil {
			return err
		}
		if got := object.Object["spec"].(map[string]any)["avoid"]; !reflect.DeepEqual(got, all) {
			return fmt.Errorf("a new pool avoids %v", got)
		}
		return nil
	})
	for number, test := range []struct {
		version     string
		given, want any
	}{
		{"v1beta1", nil, all},
		{"v1beta1", []any{}, []any{}},
		{"v1beta1", []any{"Network"}, []any{"Network"}},
		{"v1alpha1", nil, nil},
		{"v1alpha1", []any{"Broadcast"}, []any{"Broadcast"}},
	} {
		object := pool(test.version, number, test.given)
		if err := v.admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		if got := object.Object["spec"].(map[string]any)["avoid"]; !reflect.DeepEqual(got, test.want) {
			t.Errorf("a pool of %s that says %v avoids %v, want %v", test.version, test.given, got, test.want)
		}
		// A write through v1beta1 creates nothing.
		v.kubectl(t, "annotate", "vippools.v1beta1.millrace.io/"+object.GetName(), "note=1")
		after, err := v.get(t.Context(), object, "v1beta1")
		if err != nil {
			t.Fatal(err)
		}
		if got := after.Object["spec"].(map[string]any)["avoid"]; !reflect.DeepEqual(got, test.want) {
			t.Errorf("a pool that avoids %v avoids %v after an annotation", test.want, got)
		}
		if err := v.admin.Delete(t.Context(), object); err != nil {
			t.Error(err)
		}
	}
	// Who applies a manifest without the field again changes nothing, and finds no drift.
	file := filepath.Join(t.TempDir(), "pool.yaml")
	manifest := strings.Replace(fmt.Sprintf(poolManifest, "v1beta1", 3), "avoid: [Network], ", "", 1)
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, side := range []string{"--server-side=false", "--server-side"} {
		for range 2 {
			v.kubectl(t, "apply", side, "-f", file)
			if got := v.kubectl(t, "get", "vippool", "by-kubectl", "-o", "jsonpath={.spec.avoid}"); got != `["Network","Broadcast","SubnetRouterAnycast"]` {
				t.Errorf("a pool that was applied with %s avoids %s", side, got)
			}
			if output, err := v.server.Kubectl(t.Context(), "diff", side, "-f", file); err != nil {
				t.Errorf("%s: %v: %s", side, err, output)
			}
		}
		v.kubectl(t, "delete", "-f", file)
	}
}

// back downgrades, after the command of docs/install.md has filled in the previous names.
func (v *versions) back(t *testing.T, before []*unstructured.Unstructured) {
	four, three := int64(4), int64(3)
	present := []*unstructured.Unstructured{
		objectOf("LBPeer", "new-address", map[string]any{"router": map[string]any{"address": "192.0.2.1"}, "multihopTTL": three}),
		objectOf("LBPeer", "new-link", map[string]any{"router": map[string]any{"address": "fe80::2", "interface": "eth1"}}),
		objectOf("LBPeer", "new-gateway", map[string]any{"router": map[string]any{"gateway": "IPv4"}}),
		objectOf("LBPeer", "new-range", map[string]any{"router": map[string]any{"range": "2001:db8::/64", "maxPeers": four}}),
		objectOf("LBPeer", "new-both", map[string]any{"router": map[string]any{"address": "192.0.2.2"}, "peerAddress": "192.0.2.2"}),
	}
	var want []desired.Peer
	for _, object := range present {
		spec := object.Object["spec"].(map[string]any)
		spec["localASN"], spec["peerASN"] = int64(64513), int64(64512)
		object.SetAPIVersion("millrace.io/v1beta1")
		v.create(t, object)
		want = append(want, parsed(t, object))
	}
	v.script(t, v.documented(t, "kubectl get lbpeers"))
	v.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", "testdata/former_crds.yaml")
	for i, object := range present {
		eventually(t, "the former fields alone", func(ctx context.Context) error {
			got, err := v.get(ctx, object, "v1alpha1")
			if err != nil {
				return err
			}
			if _, there := got.Object["spec"].(map[string]any)["router"]; there {
				return errors.New("the former schema does not hold yet")
			}
			if means := parsed(t, got); !reflect.DeepEqual(means, want[i]) {
				t.Errorf("LBPeer %s means %+v, meant %+v", object.GetName(), means, want[i])
			}
			return nil
		})
	}
	v.unchanged(t, before, "v1alpha1")
	v.stored(t)
	v.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", "testdata/former_objects.yaml")
}

// migrated stores all objects as v1beta1, by the command of docs/install.md, and then as v1alpha1
// again. As long as it was not run, the version that was stored cannot go.
func (v *versions) migrated(t *testing.T, before []*unstructured.Unstructured) {
	migrate := v.documented(t, "kubectl get crds -o name")
	without := func(kind *unstructured.Unstructured, left int) error {
		all, _, _ := unstructured.NestedSlice(kind.Object, "spec", "versions")
		reduced := kind.DeepCopy()
		if err := unstructured.SetNestedSlice(reduced.Object, []any{all[left]}, "spec", "versions"); err != nil {
			return err
		}
		return v.admin.Update(t.Context(), reduced)
	}
	for _, kind := range v.kinds(t) {
		v.kubectl(t, "patch", "crd", kind.GetName(), "--type=json", "-p", `[
			{"op": "replace", "path": "/spec/versions/0/storage", "value": false},
			{"op": "replace", "path": "/spec/versions/1/storage", "value": true}]`)
	}
	eventually(t, "a version that is stored", func(context.Context) error {
		for _, kind := range v.kinds(t) {
			if got, _, _ := unstructured.NestedStringSlice(kind.Object, "status", "storedVersions"); len(got) != 2 {
				return fmt.Errorf("%s is stored as %v", kind.GetName(), got)
			}
			if err := without(&kind, 1); !apierrors.IsInvalid(err) {
				return fmt.Errorf("%s without the version that is stored: %w", kind.GetName(), err)
			}
		}
		return nil
	})
	v.script(t, migrate)
	for _, kind := range v.kinds(t) {
		if err := without(&kind, 1); err != nil {
			t.Errorf("%s without v1alpha1: %v", kind.GetName(), err)
		}
	}
	eventually(t, "v1beta1 alone", func(ctx context.Context) error {
		if _, err := v.server.Kubectl(ctx, "get", "vippools.v1alpha1.millrace.io"); err == nil {
			return errors.New("v1alpha1 is served")
		}
		return nil
	})
	v.unchanged(t, before, "v1beta1")

	v.kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", "crd")
	v.awaitServed(t, "v1alpha1")
	v.script(t, migrate)
	v.stored(t)
}

// documented returns the command of docs/install.md that begins so.
func (v *versions) documented(t *testing.T, beginning string) string {
	t.Helper()
	page, err := os.ReadFile("../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "\n    "+beginning)
	command, _, ended := strings.Cut(rest, "\n\n")
	if !found || !ended {
		t.Fatalf("docs/install.md has no command %q", beginning)
	}
	return strings.ReplaceAll(beginning+command, "\n    ", "\n")
}

// script runs a command with kubectl.
func (v *versions) script(t *testing.T, text string) {
	t.Helper()
	kubectl, err := v.server.KubectlProgram(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", text)
	command.Env = append(os.Environ(), "PATH="+filepath.Dir(kubectl)+":"+os.Getenv("PATH"))
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
}
