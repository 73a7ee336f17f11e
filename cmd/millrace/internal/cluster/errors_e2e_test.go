// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const viewerUser = "jane"

// TestErrors checks messages of a real API server. Each role that a message names permits the request.
func TestErrors(t *testing.T) {
	server := controlplane.Start(t, "../../../..", viewerUser)
	objects := server.Install(t, server.Admin(), client.Options{})
	objects.MakeNamespaces(t, "millrace-system")
	objects.MakeOf(t, "rbac/viewer.yaml", "rbac/tracer.yaml")
	agent := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "millrace-system", Name: "agent-1", Labels: map[string]string{
			"app.kubernetes.io/name": "millrace", "app.kubernetes.io/component": "agent",
		}},
		Spec:   corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: agentContainer, Image: "x"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	objects.Make(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node2"}},
		&millracev1beta1.VIPPool{
			ObjectMeta: metav1.ObjectMeta{Name: "public"}, Spec: millracev1beta1.VIPPoolSpec{Addresses: []string{"203.0.113.0/28"}},
		},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
	of := func(user string) Config {
		file, err := server.WriteKubeconfig(user)
		controlplane.Must(t, err)
		return Config{Kubeconfig: file, Namespace: "millrace-system", Timeout: time.Minute}
	}
	admin, viewer := of("admin"), of(viewerUser)
	run := func(ctx context.Context, config Config, node string) error {
		agents, err := AgentsOf(config, []corev1.Pod{*agent})
		controlplane.Must(t, err)
		return agents.Run(ctx, node, []string{"drops"}, io.Discard)
	}
	controlplane.Must(t, errors.Join(
		CheckNamespace(t.Context(), admin, "default"),
		// Without the permission to read the objects, the checks pass.
		CheckNamespace(t.Context(), viewer, "defaults"), CheckVIP(t.Context(), viewer, netip.MustParseAddr("203.0.113.1"))))
	const none = "no role of Millrace permits it; ask an administrator of the cluster"
	for _, test := range []struct {
		name string
		do   func(context.Context) error
		want string
		// cluster and own are the roles that permit the request.
		cluster, own string
	}{
		{name: "drain", do: func(ctx context.Context) error { return SetDrain(ctx, admin, "nodeX", true) }, want: "no node nodeX; did you mean node1?"},
		{name: "drain reason", want: "no LBNode node1", do: func(ctx context.Context) error {
			_, err := DrainReason(ctx, admin, "node1")
			return err
		}},
		{name: "reserve", want: "no VIPPool publik; did you mean public?", do: func(ctx context.Context) error {
			_, err := Reserve(ctx, admin, "publik", "", types.NamespacedName{})
			return err
		}},
		{name: "namespace", want: "no namespace defaults; did you mean default?", do: func(ctx context.Context) error {
			return CheckNamespace(ctx, admin, "defaults")
		}},
		{name: "VIP", want: "no VIP 203.0.113.1", do: func(ctx context.Context) error {
			return CheckVIP(ctx, admin, netip.MustParseAddr("203.0.113.1"))
		}},
		{name: "why", want: "no Service default/wbe; did you mean default/web?", do: func(ctx context.Context) error {
			_, err := EventsOf(ctx, admin, EventQuery{Namespace: "default", Service: "wbe"})
			return err
		}},
		{name: "agent", do: func(ctx context.Context) error { return run(ctx, admin, "node9") }, want: "no agent on node node9; did you mean node1?"},
		{name: "drain as a viewer", do: func(ctx context.Context) error { return SetDrain(ctx, viewer, "node1", true) },
			want: "not allowed: user jane may not patch nodes node1: " + none},
		{name: "list VIPs", want: "not allowed: user jane may not list vips.millrace.io: ClusterRole millrace-viewer permits it",
			cluster: "millrace-viewer", do: func(ctx context.Context) error {
				_, err := VIPs(ctx, viewer)
				return err
			}},
		{name: "find agents", own: "millrace-viewer",
			want: "not allowed: user jane may not list pods in namespace millrace-system: Role millrace-viewer of namespace millrace-system permits it",
			do: func(ctx context.Context) error {
				_, err := FindAgents(ctx, viewer)
				if errors.Is(err, ErrNotInstalled) {
					return nil
				}
				return err
			}},
		{name: "run a command", do: func(ctx context.Context) error { return run(ctx, viewer, "node1") },
			want: "pods/exec agent-1 in namespace millrace-system: Role millrace-tracer of namespace millrace-system permits it"},
		{name: "events", do: func(ctx context.Context) error {
			_, err := EventsOf(ctx, viewer, EventQuery{Namespace: "default", Service: "web"})
			return err
		}, want: "not allowed: user jane may not list events in namespace default: ClusterRole view, bound in namespace default, permits it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.do(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("%v, want %q", err, test.want)
			}
			subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: viewerUser}}
			switch {
			case test.cluster != "":
				objects.Make(t, &rbacv1.ClusterRoleBinding{
					ObjectMeta: metav1.ObjectMeta{Name: "test"}, Subjects: subjects,
					RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: test.cluster},
				})
			case test.own != "":
				objects.Make(t, &rbacv1.RoleBinding{
					ObjectMeta: metav1.ObjectMeta{Namespace: "millrace-system", Name: "test"}, Subjects: subjects,
					RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: test.own},
				})
			default:
				return
			}
			controlplane.Eventually(t, time.Minute, test.do)
		})
	}
}
