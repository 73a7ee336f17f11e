// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
)

// readinessTrusted is not part of Ready, because it is not a fault of the node. The condition is False or
// absent. Its message has no numbers, because they would change with each recovered endpoint.
func readinessTrusted() metav1.Condition {
	return metav1.Condition{
		Type: millracev1beta1.ConditionEndpointsHealthy, Status: metav1.ConditionFalse,
		Reason: millracev1beta1.ReasonPanicThreshold,
		Message: "most endpoints of most Services turned unready at once, and their nodes answer probes: " +
			"the last ready ones are served until they are ready, terminate or are deleted",
	}
}

// objectsHeld is not part of Ready, because the node continues to serve. The condition is False or absent.
func objectsHeld(held []removalguard.Held) metav1.Condition {
	texts := make([]string, 0, len(held))
	for _, h := range held {
		texts = append(texts, fmt.Sprintf("%s: %d, until %s", h.Kind, h.Count, h.Until.UTC().Format(time.RFC3339)))
	}
	return metav1.Condition{
		Type: millracev1beta1.ConditionRemovalsApplied, Status: metav1.ConditionFalse,
		Reason: millracev1beta1.ReasonMassRemoval,
		Message: "objects were removed in bulk and are retained temporarily (" + firstOf(texts) +
			"): apply them again, or see docs/failures.md for how a removal is confirmed",
	}
}
