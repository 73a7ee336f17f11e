// SPDX-License-Identifier: Apache-2.0

package route

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// maxMessage is the maximum length of a condition's message (metav1.Condition).
const maxMessage = 32768

// ownConditions are the condition types of this controller. Other controllers may add conditions.
var ownConditions = []string{
	string(gatewayv1.GatewayConditionAccepted),
	string(gatewayv1.GatewayConditionProgrammed),
	string(gatewayv1.GatewayConditionResolvedRefs),
	string(gatewayv1.GatewayConditionInsecureFrontendValidationMode),
	string(gatewayv1.GatewayClassConditionStatusSupportedVersion),
	string(gatewayv1.ListenerConditionConflicted),
	string(gatewayv1.ListenerConditionOverlappingTLSConfig),
	string(gatewayv1.RouteConditionPartiallyInvalid),
	ConditionResourcesRefused,
	ConditionStatusContested,
}

// OwnsCondition reports whether this controller writes and removes conditions of a type.
func OwnsCondition(of string) bool { return slices.Contains(ownConditions, of) }

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

func statusOf[T any](object metav1.Object, status T) Status[T] {
	return Status[T]{
		Namespace: object.GetNamespace(), Name: object.GetName(),
		Generation: object.GetGeneration(), Status: status,
	}
}
