// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

func recordMeta(revision int, status string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "kube-system", Name: fmt.Sprintf("sh.helm.release.v1.millrace.v%d", revision),
		Labels: map[string]string{"owner": "helm", "name": "millrace", "status": status},
	}
}

func secretRecord(revision int, status string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: recordMeta(revision, status)}
}

// TestHelmUninstallDetected checks that hooks act only while Helm's newest record is uninstalling, and fail
// without a record.
func TestHelmUninstallDetected(t *testing.T) {
	ofHelm := metav1.ObjectMeta{
		Namespace: "millrace-system", Name: agents, Annotations: map[string]string{helmReleaseAnnotation: "millrace"},
	}
	for _, test := range []struct {
		name         string
		objects      []runtime.Object
		acts         bool
		printed, err string
	}{
		{name: "applied without Helm", printed: "nothing to do: there is no Helm release millrace in namespace kube-system"},
		{
			name: "applied beside a release", objects: []runtime.Object{secretRecord(2, "superseded"), secretRecord(3, "deployed")},
			printed: "revision 3 of the Helm release kube-system/millrace is deployed, not uninstalling",
		},
		{name: "uninstalled", objects: []runtime.Object{secretRecord(2, "superseded"), secretRecord(3, "uninstalling")}, acts: true},
		{
			name: "rolled back after a refused uninstallation", objects: []runtime.Object{secretRecord(2, "uninstalling"), secretRecord(3, "deployed")},
			printed: "revision 3 of the Helm release kube-system/millrace is deployed",
		},
		{
			name:    "an uninstallation that keeps the history is over",
			objects: []runtime.Object{secretRecord(3, "uninstalled")}, printed: "is uninstalled, not uninstalling",
		},
		{name: "HELM_DRIVER=configmap", objects: []runtime.Object{&corev1.ConfigMap{ObjectMeta: recordMeta(2, "uninstalling")}}, acts: true},
		{
			name: "another release", objects: []runtime.Object{&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
				Namespace: "kube-system", Name: "sh.helm.release.v1.other.v2", Labels: map[string]string{"status": "uninstalling"},
			}}},
			printed: "nothing to do: there is no Helm release",
		},
		{
			name: "records elsewhere", objects: []runtime.Object{&appsv1.DaemonSet{ObjectMeta: ofHelm}},
			err: "namespace kube-system has no record of revisions 2 to 4 of the Helm release millrace",
		},
		{
			name: "the agents are gone already", objects: []runtime.Object{&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
				Namespace: "millrace-system", Name: operators, Annotations: ofHelm.Annotations,
			}}},
			err: "nothing was changed",
		},
		{
			name: "more rollbacks than may be read", objects: []runtime.Object{secretRecord(4, "uninstalling")},
			err: "revision 4 of the Helm release kube-system/millrace is the last revision that this hook may read",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := &strings.Builder{}
			u := uninstallation{client: fake.NewClientset(test.objects...), namespace: "millrace-system", out: out}
			var err error
			if u.helm, err = parseHelmRelease("kube-system/millrace", "2-4"); err != nil {
				t.Fatal(err)
			}
			acts, err := u.isUninstalling(t.Context())
			if acts != test.acts || !strings.Contains(out.String(), test.printed) || (out.Len() > 0) != (test.printed != "") {
				t.Errorf("acts: %v, want %v; printed %q, want %q", acts, test.acts, out, test.printed)
			}
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %v, want %q", err, test.err)
			}
		})
	}
}

func TestUninstallWithoutHelm(t *testing.T) {
	if acts, err := (uninstallation{client: fake.NewClientset()}).isUninstalling(t.Context()); !acts || err != nil {
		t.Errorf("acts: %v, %v", acts, err)
	}
}

func TestHelmFlags(t *testing.T) {
	for _, test := range []struct{ release, revisions, want string }{
		{"kube-system/millrace", "3-52", ""},
		{"millrace", "3-52", "--helm-release=millrace: must be NAMESPACE/NAME"},
		{"kube-system/millrace", "3", "--helm-revisions=3: must be FIRST-LAST"},
		{"kube-system/millrace", "3-2", "--helm-revisions=3-2: must be FIRST-LAST"},
	} {
		_, err := parseHelmRelease(test.release, test.revisions)
		if got := fmt.Sprint(err); test.want == "" && err != nil || test.want != "" && got != test.want {
			t.Errorf("%s, %s: %s, want %q", test.release, test.revisions, got, test.want)
		}
	}
}
