// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// MaxMessage is the maximum length of a condition's message (metav1.Condition).
const MaxMessage = 32768

// Ready returns the condition Ready for problems; without any, its message is note.
func Ready(generation int64, problems []desired.Problem, note string) metav1.Condition {
	condition := metav1.Condition{
		Type:               millracev1beta1.ConditionReady,
		Status:             metav1.ConditionTrue,
		Reason:             millracev1beta1.ReasonValid,
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
		condition.Message = Truncate(strings.Join(messages, "; "), MaxMessage)
	}
	return condition
}

// ByObject groups problems by the name of their object.
func ByObject(problems []desired.Problem) map[string][]desired.Problem {
	grouped := map[string][]desired.Problem{}
	for _, problem := range problems {
		grouped[problem.Object.Name] = append(grouped[problem.Object.Name], problem)
	}
	return grouped
}

// PatchStatus patches the status if changed differs from base. statusOf returns the status of an object.
func PatchStatus[T client.Object](ctx context.Context, writer client.StatusClient, base, changed T, statusOf func(T) any) error {
	if equality.Semantic.DeepEqual(statusOf(base), statusOf(changed)) {
		return nil
	}
	patch := SameObject{Patch: client.MergeFrom(base), UID: base.GetUID()}
	if err := writer.Status().Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("write the status of %T %s: %w", base, base.GetName(), err)
	}
	return nil
}
