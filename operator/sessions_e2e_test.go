// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func sessionEvents(t *testing.T, e *environment) {
	e.run(t)
	e.node(t, "node0", "198.51.100.1")
	report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: "node0"}}
	eventually(t, func(ctx context.Context) error { return e.get(ctx, report) })
	expect := func(status metav1.ConditionStatus, reason string) {
		t.Helper()
		eventually(t, func(ctx context.Context) error {
			if err := e.get(ctx, report); err != nil {
				return err
			}
			meta.SetStatusCondition(&report.Status.Conditions, metav1.Condition{
				Type: millracev1beta1.ConditionBGPEstablished, Status: status, Reason: reason, Message: "tor1: no answer",
			})
			return e.client.Status().Update(ctx, report)
		})
	}
	expect(metav1.ConditionTrue, millracev1beta1.ReasonEstablished)
	// Until the operator has observed the first state, the second may be its first.
	up := true
	eventually(t, func(ctx context.Context) error {
		if up = !up; up {
			expect(metav1.ConditionTrue, millracev1beta1.ReasonEstablished)
		} else {
			expect(metav1.ConditionFalse, millracev1beta1.ReasonNotEstablished)
		}
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, UID: report.UID}}
		return e.warning(ctx, service, millracev1beta1.ReasonNotEstablished, "BGP sessions are not established: tor1: no answer")
	})
}
