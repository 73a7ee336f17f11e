// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// The operator's conditions in a report have the report's generation.
func TestConditionsOfReportsHaveAGeneration(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := millracev1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: "node", Generation: 3}}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(report).WithStatusSubresource(report).Build()
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(report), report); err != nil {
		t.Fatal(err)
	}
	readiness, keys := &reportReconciler{client: api, live: api}, &tunnelKeyReconciler{client: api, live: api}
	if err := readiness.updateConditions(t.Context(), report, &metav1.Condition{
		Type: millracev1beta1.ConditionNodeReady, Status: metav1.ConditionUnknown, Reason: millracev1beta1.ReasonNodeNotReady,
	}); err != nil {
		t.Fatal(err)
	}
	if err := keys.updateCondition(t.Context(), report, &metav1.Condition{
		Type: millracev1beta1.ConditionTunnelKeyCurrent, Status: metav1.ConditionFalse, Reason: millracev1beta1.ReasonKeyNotConfirmed,
	}); err != nil {
		t.Fatal(err)
	}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(report), report); err != nil {
		t.Fatal(err)
	}
	if len(report.Status.Conditions) != 3 {
		t.Errorf("conditions = %+v", report.Status.Conditions)
	}
	for _, condition := range report.Status.Conditions {
		if condition.ObservedGeneration != 3 {
			t.Errorf("%s has observedGeneration %d", condition.Type, condition.ObservedGeneration)
		}
	}
}
