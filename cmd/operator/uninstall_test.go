// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func at(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "millrace-system", Name: name}
}

func service(name string, finalizers ...string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Finalizers: finalizers},
		Status:     corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "203.0.113.7"}}}},
	}
}

func pod(component string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "millrace-system", Name: component + "-x", Labels: map[string]string{
			"app.kubernetes.io/name": "millrace", "app.kubernetes.io/component": component,
		}},
		Spec:   corev1.PodSpec{NodeName: "node7"},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

func uninstalls(t *testing.T, release bool, objects ...runtime.Object) (uninstallation, *bytes.Buffer) {
	t.Helper()
	deployment := &appsv1.Deployment{ObjectMeta: at(operators)}
	deployment.Annotations = map[string]string{annotation: strconv.FormatBool(release)}
	objects = append(objects, &appsv1.DaemonSet{ObjectMeta: at(agents)}, deployment)
	out := &bytes.Buffer{}
	return uninstallation{client: fake.NewClientset(objects...), namespace: "millrace-system", out: out}, out
}

func left(t *testing.T, u uninstallation) []string {
	t.Helper()
	var names []string
	sets, err := u.client.AppsV1().DaemonSets("millrace-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range sets.Items {
		names = append(names, set.Name)
	}
	deployments, err := u.client.AppsV1().Deployments("millrace-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, deployment := range deployments.Items {
		names = append(names, deployment.Name)
	}
	return names
}

func TestUninstallRefuses(t *testing.T) {
	u, _ := uninstalls(t, false, service("web", millracev1beta1.Finalizer), service("other", millracev1beta1.SharedFinalizer))
	err := u.prepare(t.Context())
	if err == nil || !strings.HasPrefix(err.Error(), "1 Services have addresses of Millrace: shop/web: ") {
		t.Errorf("got %v", err)
	}
	if got := left(t, u); !slices.Equal(got, []string{agents, operators}) {
		t.Errorf("remaining: %v, want both", got)
	}
}

func TestUninstall(t *testing.T) {
	u, out := uninstalls(t, false, service("other", millracev1beta1.SharedFinalizer))
	if err := u.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Helm deletes the operator later.
	if got := left(t, u); !slices.Equal(got, []string{operators}) {
		t.Errorf("remaining: %v, want the operator", got)
	}
	if out.String() != "millrace-agent is deleted\n" {
		t.Errorf("printed %q", out)
	}
	if err := u.prepare(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestUninstallReleases checks that the operator's Services can be deleted afterwards, and that other
// Services are not modified.
func TestUninstallReleases(t *testing.T) {
	u, _ := uninstalls(t, true,
		service("web", "example.com/own", millracev1beta1.Finalizer, millracev1beta1.SharedFinalizer),
		service("other", millracev1beta1.SharedFinalizer))
	if err := u.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := left(t, u); len(got) > 0 {
		t.Errorf("remaining: %v, want none", got)
	}
	for _, test := range []struct {
		name       string
		finalizers []string
		addresses  int
	}{
		{"web", []string{"example.com/own"}, 0},
		{"other", []string{millracev1beta1.SharedFinalizer}, 1},
	} {
		got, err := u.client.CoreV1().Services("shop").Get(t.Context(), test.name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Finalizers, test.finalizers) || len(got.Status.LoadBalancer.Ingress) != test.addresses {
			t.Errorf("Service %s has %v and %v", test.name, got.Finalizers, got.Status.LoadBalancer)
		}
	}
}

// TestUninstallResumes checks that an attempt continues a previous one that already deleted the operator with
// its annotation.
func TestUninstallResumes(t *testing.T) {
	u, out := uninstalls(t, true, service("early", millracev1beta1.Finalizer), service("late", millracev1beta1.Finalizer))
	client := u.client.(*fake.Clientset)
	client.PrependReactor("update", "services", func(action k8stesting.Action) (bool, runtime.Object, error) {
		update, is := action.(k8stesting.UpdateAction)
		if is && update.GetObject().(*corev1.Service).Name == "late" {
			return true, nil, errors.New("the API server is away")
		}
		return false, nil, nil
	})
	if err := u.prepare(t.Context()); err == nil || !strings.Contains(err.Error(), "the API server is away") {
		t.Fatalf("the first try: %v", err)
	}
	if got := left(t, u); !slices.Equal(got, []string{agents}) {
		t.Fatalf("remaining: %v, want the agents", got)
	}
	client.ReactionChain = client.ReactionChain[1:]
	if err := u.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"millrace-operator does not exist: continuing, because of the annotation", "removed the addresses of 1 Services: shop/late\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed %q, want %q", out, want)
		}
	}
}

// TestUninstallWithoutOperator checks that a missing operator does not count as a confirmation.
func TestUninstallWithoutOperator(t *testing.T) {
	for _, test := range []struct {
		name    string
		without []string
		release bool
		want    string
	}{
		{"the Deployment is gone", []string{operators}, false,
			"1 Services have addresses of Millrace: shop/web, and Deployment millrace-operator does not exist: restore it"},
		{"all is gone", []string{operators, agents}, false, "and DaemonSet millrace-agent do not exist: install Millrace again"},
		{"all is gone, and it is told by the flag", []string{operators, agents}, true, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			u, out := uninstalls(t, false, service("web", millracev1beta1.Finalizer))
			u.release = test.release
			remove(t, u, test.without)
			err := u.prepare(t.Context())
			web, getErr := u.client.CoreV1().Services("shop").Get(t.Context(), "web", metav1.GetOptions{})
			if getErr != nil {
				t.Fatal(getErr)
			}
			if addresses := len(web.Status.LoadBalancer.Ingress); test.want == "" {
				if err != nil || addresses != 0 || !strings.Contains(out.String(), "removed the addresses of 1 Services: shop/web\n") {
					t.Errorf("%v, and the Service has %d addresses: printed %q", err, addresses, out)
				}
			} else if err == nil || !strings.Contains(err.Error(), test.want) || addresses != 1 {
				t.Errorf("%v, want %q; the Service has %d addresses", err, test.want, addresses)
			}
		})
	}
}

func remove(t *testing.T, u uninstallation, names []string) {
	t.Helper()
	var err error
	for _, name := range names {
		if name == operators {
			err = u.client.AppsV1().Deployments("millrace-system").Delete(t.Context(), name, metav1.DeleteOptions{})
		} else {
			err = u.client.AppsV1().DaemonSets("millrace-system").Delete(t.Context(), name, metav1.DeleteOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestUninstallWaits(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	u, _ := uninstalls(t, false, pod("agent", corev1.ConditionTrue))
	if err := u.prepare(ctx); err == nil || !strings.Contains(err.Error(), "agent-x on node7") {
		t.Errorf("got %v", err)
	}
}

func TestAwaitCleanup(t *testing.T) {
	set := &appsv1.DaemonSet{ObjectMeta: at(cleanup), Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, NumberReady: 1}}
	set.Generation, set.Status.ObservedGeneration = 1, 1
	set.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux", holdLabel: "true"}
	u, out := uninstalls(t, false, set, pod("cleanup", corev1.ConditionTrue))
	if err := u.awaitCleanup(t.Context()); err != nil || out.String() != "all nodes are clean\n" {
		t.Errorf("got %v, printed %q", err, out)
	}
	started, err := u.client.AppsV1().DaemonSets("millrace-system").Get(t.Context(), cleanup, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if selector := started.Spec.Template.Spec.NodeSelector; len(selector) != 1 || selector["kubernetes.io/os"] != "linux" {
		t.Errorf("the pods of the cleanup are scheduled by %v", selector)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	set.Status.NumberReady = 0
	u, _ = uninstalls(t, false, set, pod("cleanup", corev1.ConditionFalse))
	if err := u.awaitCleanup(ctx); err == nil || !strings.Contains(err.Error(), "cleanup-x on node7") {
		t.Errorf("got %v", err)
	}
}
