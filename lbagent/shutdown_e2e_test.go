// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lbagent

import (
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	"github.com/millrace-lb/millrace/lbagent/internal/shutdown"
)

// A terminated agent leaves its routes while its DaemonSet exists, and withdraws them after its deletion.
func TestUninstall(t *testing.T) {
	w := newWorld(t)
	w.install()
	w.populate()
	set := w.createDaemonSet()
	first := w.start()
	w.Await(30*time.Second, "the VIP at the router and the agent ready", func() bool { return w.announced() && ready() })
	w.restart(first, syscall.SIGTERM)
	second := w.start()
	w.awaitBack()

	if err := w.client.Delete(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := second.end(syscall.SIGTERM); err != nil {
		t.Errorf("the agent exited with %v", err)
	}
	config := DefaultConfig()
	if took := time.Since(began); took < config.DrainDelay || took > config.DrainDelay+config.WithdrawDelay+shutdown.Timeout {
		t.Errorf("the agent exited after %s", took)
	}
	if w.announced() {
		t.Error("the router still has a route of an uninstalled agent")
	}
}

// An agent withdraws its routes when its node shuts down, though the DaemonSet exists and no operator runs.
func TestNodeShutdown(t *testing.T) {
	w := newWorld(t)
	w.install()
	w.populate()
	w.createDaemonSet()
	a := w.start()
	w.Await(30*time.Second, "the VIP at the router and the agent ready", func() bool { return w.announced() && ready() })

	node := get(w, &corev1.Node{})
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "node is shutting down",
	}}
	if err := w.client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := a.end(syscall.SIGTERM); err != nil {
		t.Errorf("the agent exited with %v", err)
	}
	config := DefaultConfig()
	if took := time.Since(began); took < config.DrainDelay || took > config.DrainDelay+config.WithdrawDelay+shutdown.Timeout {
		t.Errorf("the agent exited after %s", took)
	}
	if w.announced() {
		t.Error("the router still has a route of a node that shuts down")
	}
}

func (w *world) createDaemonSet() *appsv1.DaemonSet {
	w.t.Helper()
	if err := appsv1.AddToScheme(w.client.Scheme()); err != nil {
		w.t.Fatal(err)
	}
	w.create(&rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: tunnelkey.Namespace, Name: "agent"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, ResourceNames: []string{"millrace-agent"}, Verbs: []string{"get"},
		}},
	})
	w.create(&rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: tunnelkey.Namespace, Name: "agent"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "agent"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: agentUser}},
	})
	labels := map[string]string{"app": "agent"}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: tunnelkey.Namespace, Name: "millrace-agent"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
			},
		},
	}
	w.create(set)
	w.Await(10*time.Second, "the DaemonSet", func() bool {
		return w.client.Get(w.t.Context(), client.ObjectKeyFromObject(set), &appsv1.DaemonSet{}) == nil
	})
	return set
}
