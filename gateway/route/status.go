// SPDX-License-Identifier: Apache-2.0

package route

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxMessage is the limit of a condition's message (metav1.Condition).
const maxMessage = 32768

// condition makes a condition without a time.
func condition[T, R ~string](of T, status bool, reason R, message string, generation int64) metav1.Condition {
	found := metav1.Condition{
		Type: string(of), Status: metav1.ConditionFalse, Reason: string(reason),
		Message: message, ObservedGeneration: generation,
	}
	if status {
		found.Status = metav1.ConditionTrue
	}
	if len(found.Message) > maxMessage {
		found.Message = found.Message[:maxMessage]
	}
	return found
}

// statusOf makes the status of an object.
func statusOf[T any](object metav1.Object, status T) Status[T] {
	return Status[T]{
		Namespace: object.GetNamespace(), Name: object.GetName(),
		Generation: object.GetGeneration(), Status: status,
	}
}
