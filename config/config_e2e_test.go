// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package config

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const (
	agentUser = "system:serviceaccount:millrace-system:millrace-agent"
	nodeClaim = "authentication.kubernetes.io/node-name"
	viewer    = "viewer"
)

func newClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, millracev1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	if config.WarningHandlerWithContext == nil {
		config.WarningHandlerWithContext = rest.NoWarnings{}
	}
	c, err := client.New(config, client.Options{Scheme: scheme, FieldValidation: "Strict"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newWarningClient(t *testing.T, server *controlplane.Server) (client.Client, *controlplane.Warnings) {
	t.Helper()
	warnings := &controlplane.Warnings{}
	config := server.Admin()
	config.WarningHandlerWithContext = warnings
	return newClient(t, config), warnings
}

// eventually retries until the API server's caches have observed previous writes.
func eventually(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// install applies a kustomization. Only objects whose CRDs were just created are retried.
func install(t *testing.T, server *controlplane.Server, admin client.Client, directory string) {
	t.Helper()
	for _, object := range build(t, server, directory) {
		name := object.GetKind() + " " + object.GetName()
		eventually(t, "applying "+name, func(ctx context.Context) error {
			err := admin.Create(ctx, object.DeepCopy())
			if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
				t.Fatalf("applying %s: %v", name, err)
			}
			return err
		})
	}
}

// TestManifests applies all manifests with strict validation, and then verifies permissions.
func TestManifests(t *testing.T) {
	server := controlplane.Start(t, "..", viewer)
	admin := newClient(t, server.Admin())
	install(t, server, admin, "default")
	install(t, server, admin, "gateway-api/standard")
	install(t, server, admin, "gateway")
	install(t, server, admin, "cleanup")
	install(t, server, admin, "samples")

	t.Run("agent", func(t *testing.T) { testAgent(t, server, admin) })
	t.Run("viewer", func(t *testing.T) { testViewer(t, server, admin) })
	t.Run("tracer", func(t *testing.T) { testTracer(t, server, admin) })
	t.Run("VIP", func(t *testing.T) { testVIPNames(t, admin) })
	t.Run("refused", func(t *testing.T) { testRefused(t, admin) })
	t.Run("full pools", func(t *testing.T) { testFullPools(t, server) })
	t.Run("warned", func(t *testing.T) { testWarned(t, server) })
	t.Run("pools", func(t *testing.T) { testPoolPolicies(t, server, admin) })
	t.Run("warnings", func(t *testing.T) { testPeerWarnings(t, server) })
	t.Run("columns", func(t *testing.T) { testRouterColumn(t, server, admin) })
	t.Run("accepted", func(t *testing.T) { testAccepted(t, admin) })
	t.Run("webhook", func(t *testing.T) { testWebhookComponents(t, server, admin) })
	t.Run("aggregated API", func(t *testing.T) { testLiveComponent(t, server, admin) })
	t.Run("Gateway API", func(t *testing.T) { testGatewayAPI(t, admin) })
}

// testVIPNames includes changes of a VIP that was created before the rule.
func testVIPNames(t *testing.T, admin client.Client) {
	for _, test := range []struct {
		name, address string
		refused       bool
	}{
		{name: "203.0.113.201", address: "203.0.113.201"},
		{name: "2001-db8-0-0-0-0-0-201", address: "2001:db8::201"},
		{name: "2001-db8-0-1-0-0-0-0", address: "2001:db8:0:1::"},
		{name: "edge", address: "203.0.113.202", refused: true},
		{name: "203.0.113.203", address: "203.0.113.202", refused: true},
		{name: "2001-db8--202", address: "2001:db8::202", refused: true},
		{name: "2001-0db8-0-0-0-0-0-202", address: "2001:db8::202", refused: true},
		{name: "2001-db8-0-0-0-0-0-203", address: "2001:db8::202", refused: true},
		{name: "2001-db8-0-0-0-0-202", address: "2001:db8::202", refused: true},
		{name: "edge", address: "2001:db8::202", refused: true},
	} {
		vip := &millracev1beta1.VIP{
			ObjectMeta: metav1.ObjectMeta{Name: test.name},
			Spec:       millracev1beta1.VIPSpec{Address: test.address},
		}
		if want := millracev1beta1.VIPName(netip.MustParseAddr(test.address)); (test.name != want) != test.refused {
			t.Fatalf("the VIP of %s has the name %s, the case expects another one", test.address, want)
		}
		err := admin.Create(t.Context(), vip)
		switch {
		case !test.refused && err != nil:
			t.Errorf("VIP %s of %s: %v", test.name, test.address, err)
		case test.refused && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "metadata.name must be the address")):
			t.Errorf("VIP %s of %s: %v, want it refused for its name", test.name, test.address, err)
		}
	}
}

// testGatewayAPI installs other versions of Gateway API over the installed one, and vice versa.
func testGatewayAPI(t *testing.T, admin client.Client) {
	const version = "gateway.networking.k8s.io/bundle-version"
	kind := &unstructured.Unstructured{}
	kind.SetAPIVersion("apiextensions.k8s.io/v1")
	kind.SetKind("CustomResourceDefinition")
	kind.SetName("httproutes.gateway.networking.k8s.io")
	write := func(to string) func(context.Context) error {
		return func(ctx context.Context) error {
			patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, version, to)
			return admin.Patch(ctx, kind.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch)))
		}
	}
	refused := func(to string) func(context.Context) error {
		return func(ctx context.Context) error {
			switch err := write(to)(ctx); {
			case err == nil:
				return errors.New("not refused")
			case !apierrors.IsInvalid(err), !strings.Contains(err.Error(), "is newer"):
				return fmt.Errorf("not refused by our policy: %w", err)
			default:
				return nil
			}
		}
	}
	// Gateway API's own policy rejects versions before v1.6; either error may be returned.
	installed := "v1.6.3"
	for _, older := range []string{"v1.6.2", "v1.6.0-rc.1"} {
		eventually(t, older+" over "+installed, func(ctx context.Context) error {
			return errors.Join(refused(older)(ctx), write(installed)(ctx))
		})
	}
	for _, newer := range []string{"v1.6.3", "v1.6.10", "v1.10.0", "v2.0.0"} {
		if err := write(newer)(t.Context()); err != nil {
			t.Errorf("%s over an older one: %v", newer, err)
		}
	}
	for _, older := range []string{"v1.6.3", "v1.10.1"} {
		if err := refused(older)(t.Context()); err != nil {
			t.Errorf("%s over v2.0.0: %v", older, err)
		}
	}
}

func testAgent(t *testing.T, server *controlplane.Server, admin client.Client) {
	for i, name := range []string{"node1", "node2"} {
		object := ofNode("LBNode", name)
		object.Object["spec"] = map[string]any{"id": int64(i + 1)}
		for _, object := range []client.Object{object, ofNode("LBNodeReport", name)} {
			if err := admin.Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
	}
	for kind, status := range map[string]string{"LBNode": `{"bootID":%q}`, "LBNodeReport": `{"version":%q}`} {
		testAgentWrites(t, server, kind, `{"status":`+status+`}`)
	}
	config := server.Admin()
	config.Impersonate = rest.ImpersonationConfig{UserName: agentUser, Extra: map[string][]string{nodeClaim: {"node1"}}}
	agent := newClient(t, config)
	spec := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"addresses":["198.51.100.99"]}}`))
	if err := agent.Patch(t.Context(), ofNode("LBNode", "node1"), spec); !apierrors.IsForbidden(err) {
		t.Errorf("the agent's write to its own spec: %v, want forbidden", err)
	}
	for _, kind := range []string{"LBNode", "LBNodeReport"} {
		if err := agent.Delete(t.Context(), ofNode(kind, "node1")); !apierrors.IsForbidden(err) {
			t.Errorf("the agent's deletion of its own %s: %v, want forbidden", kind, err)
		}
	}
	if err := agent.Create(t.Context(), ofNode("LBNodeReport", "node3")); !apierrors.IsForbidden(err) {
		t.Errorf("an LBNodeReport created by an agent: %v, want forbidden", err)
	}
}

// testAgentWrites patches statuses of all nodes. The patch has a verb for a text that is new each time.
func testAgentWrites(t *testing.T, server *controlplane.Server, kind, format string) {
	write := func(ctx context.Context, claims []string, node string) error {
		config := server.Admin()
		config.Impersonate = rest.ImpersonationConfig{UserName: agentUser}
		if claims != nil {
			config.Impersonate.Extra = map[string][]string{nodeClaim: claims}
		}
		patch := client.RawPatch("application/merge-patch+json", []byte(fmt.Sprintf(format, time.Now().String())))
		return newClient(t, config).Status().Patch(ctx, ofNode(kind, node), patch)
	}
	refusal := func(claims []string, node string) func(context.Context) error {
		return func(ctx context.Context) error {
			switch err := write(ctx, claims, node); {
			case err == nil:
				return errors.New("not refused")
			case !apierrors.IsForbidden(err), !strings.Contains(err.Error(), "only objects of its own node"):
				return fmt.Errorf("not refused by the policy: %w", err)
			default:
				return nil
			}
		}
	}
	eventually(t, "own node's "+kind, func(ctx context.Context) error { return write(ctx, []string{"node1"}, "node1") })
	eventually(t, "another node's "+kind, refusal([]string{"node1"}, "node2"))
	// From here on the policy is known to be in force.
	for name, test := range map[string]struct {
		claims []string
		node   string
	}{
		"no claim":     {nil, "node1"},
		"empty claim":  {[]string{""}, "node1"},
		"second claim": {[]string{"node1", "node2"}, "node2"},
	} {
		if err := refusal(test.claims, test.node)(t.Context()); err != nil {
			t.Errorf("%s of %s: %v", kind, name, err)
		}
	}
	if err := write(t.Context(), []string{"node2"}, "node2"); err != nil {
		t.Errorf("own node's %s: %v", kind, err)
	}
}

func ofNode(kind, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("millrace.io/v1beta1")
	object.SetKind(kind)
	object.SetName(name)
	return object
}

// testViewer runs the command line with only the permissions of the viewer's roles.
func testViewer(t *testing.T, server *controlplane.Server, admin client.Client) {
	program := filepath.Join(t.TempDir(), "millrace")
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/millrace").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	kubeconfig, err := server.WriteKubeconfig(viewer)
	if err != nil {
		t.Fatal(err)
	}
	status := func(ctx context.Context) (string, error) {
		out, err := exec.CommandContext(ctx, program, "status", "--kubeconfig", kubeconfig).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		return string(out), nil
	}
	if _, err := status(t.Context()); err == nil || !strings.Contains(err.Error(), "millrace-viewer") {
		t.Errorf("without rights: error %v, want one that names the role", err)
	}
	for _, binding := range []map[string]any{
		{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "millrace-viewer"}},
		{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "millrace-viewer"}},
	} {
		binding["subjects"] = []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": viewer}}
		object := &unstructured.Unstructured{Object: binding}
		object.SetName("viewer")
		if object.GetKind() == "RoleBinding" {
			object.SetNamespace("millrace-system")
		}
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	var text string
	eventually(t, "millrace status", func(ctx context.Context) (err error) {
		text, err = status(ctx)
		return err
	})
	for _, want := range []string{"node1", "VIPPool/public  NotObserved", "Service/web (default)  NotObserved"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
}
