// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lbagent

import (
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// The deletion of a CRD deletes its objects but withdraws their routes only after the hold, which the node
// reports before.
func TestCRDDeleted(t *testing.T) {
	w := newWorld(t)
	w.install()
	w.populate()
	w.hold = 15 * time.Second
	w.start()
	w.Await(30*time.Second, "the VIP at the router and the agent ready", func() bool { return w.announced() && ready() })
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	crd.SetName("lbpeers.millrace.io")
	if err := w.client.Delete(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	held := func() *metav1.Condition {
		return meta.FindStatusCondition(w.report().Status.Conditions, millracev1beta1.ConditionRemovalsApplied)
	}
	w.Await(10*time.Second, "the held objects in the LBNodeReport", func() bool { return held() != nil })
	w.keepsRoute(w.hold / 2)
	w.Await(w.hold, "no route after the hold", func() bool { return !w.announced() })
	w.Await(10*time.Second, "no held objects", func() bool { return held() == nil })
}
