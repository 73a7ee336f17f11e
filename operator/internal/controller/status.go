// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/operator/internal/control"
)

// maxMessage is the longest message of a condition (metav1.Condition).
const maxMessage = 32768

// readyCondition is Ready of an object with these problems.
func readyCondition(generation int64, problems []desired.Problem, note string) metav1.Condition {
	condition := metav1.Condition{
		Type:               millracev1alpha1.ConditionReady,
		Status:             metav1.ConditionTrue,
		Reason:             millracev1alpha1.ReasonValid,
		Message:            note,
		ObservedGeneration: generation,
	}
	if len(problems) > 0 {
		messages := make([]string, 0, len(problems))
		for _, problem := range problems {
			messages = append(messages, problem.Message)
		}
		condition.Status = metav1.ConditionFalse
		condition.Reason = problems[0].Reason
		condition.Message = control.Truncate(strings.Join(messages, "; "), maxMessage)
	}
	return condition
}

// byObject groups problems by the name of their object.
func byObject(problems []desired.Problem) map[string][]desired.Problem {
	grouped := map[string][]desired.Problem{}
	for _, problem := range problems {
		grouped[problem.Object.Name] = append(grouped[problem.Object.Name], problem)
	}
	return grouped
}

// patchStatus writes the status of changed where it differs from that of base,
// an object as it was read. statusOf returns a pointer to the status.
func patchStatus[T client.Object](ctx context.Context, writer client.StatusClient, base, changed T, statusOf func(T) any) error {
	if equality.Semantic.DeepEqual(statusOf(base), statusOf(changed)) {
		return nil
	}
	patch := control.SameObject{Patch: client.MergeFrom(base), UID: base.GetUID()}
	if err := writer.Status().Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("writing the status of %T %s: %w", base, base.GetName(), err)
	}
	return nil
}

// setReady puts a condition on a list, which keeps its transition time when
// only the message differs.
func setReady(conditions *[]metav1.Condition, condition metav1.Condition) {
	meta.SetStatusCondition(conditions, condition)
}
