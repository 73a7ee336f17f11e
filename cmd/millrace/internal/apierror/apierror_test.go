// SPDX-License-Identifier: Apache-2.0

package apierror

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// rbac returns the answer to a request that RBAC rejects (k8s.io/apiserver, responsewriters.Forbidden).
func rbac(verb, group, resource, name, where string) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: resource}, name,
		fmt.Errorf("User %q cannot %s resource %q in API group %q %s", "jane", verb, resource, group, where))
}

func TestExplain(t *testing.T) {
	const cluster, install, shop = "at the cluster scope", `in the namespace "millrace-system"`, `in the namespace "shop"`
	nodes := schema.GroupResource{Resource: "nodes"}
	vips := schema.GroupResource{Group: "millrace.io", Resource: "vips"}
	unserved := func(of schema.GroupResource, name string) error {
		return apierrors.NewGenericServerResponse(http.StatusNotFound, "get", of, name, "404 page not found", 0, true)
	}
	named := func(names ...string) func(schema.GroupResource) []string {
		return func(schema.GroupResource) []string { return names }
	}
	for name, test := range map[string]struct {
		err   error
		names func(schema.GroupResource) []string
		is    error
		want  string
	}{
		"VIPs": {rbac("list", "millrace.io", "vips", "", cluster), nil, ErrForbidden,
			"not allowed: user jane may not list vips.millrace.io: ClusterRole millrace-viewer permits it"},
		"a VIP": {rbac("create", "millrace.io", "vips", "203.0.113.1", cluster), nil, ErrForbidden,
			"not allowed: user jane may not create vips.millrace.io 203.0.113.1: no role of Millrace permits it; ask an administrator of the cluster"},
		"a node": {rbac("patch", "", "nodes", "node1", cluster), nil, ErrForbidden,
			"not allowed: user jane may not patch nodes node1: no role of Millrace permits it; ask an administrator of the cluster"},
		"agents": {rbac("list", "", "pods", "", install), nil, ErrForbidden,
			"not allowed: user jane may not list pods in namespace millrace-system: Role millrace-viewer of namespace millrace-system permits it"},
		"pods of others": {rbac("list", "", "pods", "", shop), nil, ErrForbidden,
			"not allowed: user jane may not list pods in namespace shop: ClusterRole view, bound in namespace shop, permits it"},
		"a stream": {errors.New(`unable to upgrade connection: ` + rbac("create", "", "pods/exec", "a", install).Error()), nil, ErrForbidden,
			"not allowed: user jane may not create pods/exec a in namespace millrace-system: Role millrace-tracer of namespace millrace-system permits it"},
		"a stream to a pod of others": {rbac("create", "", "pods/exec", "a", shop), nil, ErrForbidden,
			"not allowed: user jane may not create pods/exec a in namespace shop: no role of Millrace permits it; ask an administrator of the cluster"},
		"traffic": {rbac("list", "live.millrace.io", "servicetraffic", "", cluster), nil, ErrForbidden,
			"not allowed: user jane may not list servicetraffic.live.millrace.io: ClusterRole millrace-live-viewer permits it"},
		"an admission policy": {apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a", errors.New("no such command")), nil, ErrForbidden,
			`not allowed: pods "a" is forbidden: no such command`},
		"credentials": {apierrors.NewUnauthorized("who is it?"), nil, ErrForbidden,
			"not allowed: https://api does not accept the credentials of this context: who is it?"},
		"a mistyped node": {apierrors.NewNotFound(nodes, "nodeX"), named("node2", "node1", "gw"), nil, "no node nodeX; did you mean node1?"},
		"another node":    {apierrors.NewNotFound(nodes, "edge-a"), named("node2", "node1"), nil, "no node edge-a; existing names: node1, node2"},
		"a short name":    {apierrors.NewNotFound(nodes, "db"), named("web"), nil, "no node db; existing names: web"},
		"one of many":     {apierrors.NewNotFound(nodes, "edge-a"), named("n1", "n2", "n3", "n4", "n5", "n6"), nil, "no node edge-a"},
		"no names":        {apierrors.NewNotFound(vips, "203.0.113.1"), nil, nil, "no VIP 203.0.113.1"},
		"another resource": {apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "replicasets"}, "a"), nil, nil,
			"no replicasets.apps a"},
		"no kinds": {unserved(vips, ""), nil, ErrNotInstalled,
			"Millrace is not installed in this cluster: https://api has no resource of millrace.io/v1beta1; install it with: kubectl apply --server-side -k config/default"},
		"no kinds, by name": {unserved(vips, "203.0.113.1"), nil, ErrNotInstalled, "Millrace is not installed"},
		"another API that is absent": {unserved(schema.GroupResource{Group: "apps", Resource: "daemonsets"}, ""), nil, nil,
			"https://api has no resource daemonsets.apps: the server could not find the requested resource"},
		"no network": {&url.Error{Op: "Get", URL: "https://api/x", Err: errors.New("connection refused")}, nil, ErrUnreachable,
			"the API server does not answer at https://api: connection refused; see --kubeconfig and --context"},
		"interrupted": {context.Canceled, nil, context.Canceled, "context canceled"},
	} {
		err := Explain(test.err, Request{Host: "https://api", Namespace: "millrace-system", Names: test.names})
		if !strings.HasPrefix(err.Error(), test.want) || test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%s: %q, want %q of %v", name, err, test.want, test.is)
		}
		var missing *Missing
		if test.is == nil && strings.HasPrefix(test.want, "no ") && !errors.As(err, &missing) {
			t.Errorf("%s: %T", name, err)
		}
	}
}

// TestGrants compares the table with the rules of the roles for users.
func TestGrants(t *testing.T) {
	type right struct{ role, group, resource, verb string }
	rights := map[right]bool{}
	add := func(role, group string, resources, verbs []string) {
		for _, resource := range resources {
			for _, verb := range verbs {
				rights[right{role, group, resource, verb}] = !rights[right{role, group, resource, verb}]
			}
		}
	}
	for _, of := range grants {
		if of.role != builtin {
			add(of.role, of.group, of.resources, of.verbs)
		}
	}
	for _, file := range []string{"rbac/viewer.yaml", "rbac/tracer.yaml", "liveapi/viewer.yaml"} {
		content, err := os.ReadFile(filepath.Join("../../../../config", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(string(content), "\n---\n") {
			role := &rbacv1.Role{}
			if err := yaml.Unmarshal([]byte(document), role); err != nil {
				t.Fatal(err)
			}
			for _, rule := range role.Rules {
				// The tracer may read the same pods as the viewer.
				resources := slices.DeleteFunc(rule.Resources, func(resource string) bool {
					return role.Name == "millrace-tracer" && resource == "pods"
				})
				add(role.Name, rule.APIGroups[0], resources, rule.Verbs)
			}
		}
	}
	for of, differs := range rights {
		if differs {
			t.Errorf("%+v is in the table or in config, and not in both", of)
		}
	}
}
