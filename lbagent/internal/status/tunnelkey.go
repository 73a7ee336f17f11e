// SPDX-License-Identifier: Apache-2.0

package status

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// TunnelKey is the state of the tunnel's keys.
type TunnelKey struct {
	// Ring is the state of the data plane.
	Ring tunnelkey.Ring
	// Reason is the reason why Ring differs from the Secret, or empty.
	Reason, Message string
	// OtherSeed is a message if the seed of the flow hash in the Secret differs from the node's, else empty.
	OtherSeed string
}

func (k *TunnelKey) keys() *millracev1beta1.TunnelKeysStatus {
	if k == nil || len(k.Ring.Accepted) == 0 {
		return nil
	}
	keys := &millracev1beta1.TunnelKeysStatus{Sending: int64(k.Ring.Sending), Required: k.Ring.Required}
	for _, generation := range k.Ring.Accepted {
		keys.Accepted = append(keys.Accepted, int64(generation))
	}
	return keys
}

// seed is present only while the seeds differ and not part of Ready.
func (k *TunnelKey) seed() (condition metav1.Condition, differs bool) {
	return metav1.Condition{
		Type: millracev1beta1.ConditionFlowSeedConsistent, Status: metav1.ConditionFalse,
		Reason: millracev1beta1.ReasonSeedMismatch, Message: k.OtherSeed,
	}, k.OtherSeed != ""
}

// condition is not part of Ready, because other protections of the tunnel remain.
func (k *TunnelKey) condition() metav1.Condition {
	if k.Reason == "" {
		return trueCondition(millracev1beta1.ConditionTunnelKeyProgrammed, millracev1beta1.ReasonKeyInUse)
	}
	return metav1.Condition{
		Type: millracev1beta1.ConditionTunnelKeyProgrammed, Status: metav1.ConditionFalse, Reason: k.Reason, Message: k.Message,
	}
}
