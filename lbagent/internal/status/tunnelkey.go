// SPDX-License-Identifier: Apache-2.0

package status

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// TunnelKey is what the agent observed of the keys of the tunnel.
type TunnelKey struct {
	// Ring is what the data plane does.
	Ring tunnelkey.Ring
	// Reason is why that is not what the Secret asks for; empty where it is.
	Reason, Message string
	// OtherSeed says that the Secret has another seed of the flow hash than the node; empty where
	// it has the same.
	OtherSeed string
}

// keys are those of the report; nil where the agent has none.
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

// seed is there only while the seeds differ, and no part of Ready.
func (k *TunnelKey) seed() (condition metav1.Condition, differs bool) {
	return metav1.Condition{
		Type: millracev1beta1.ConditionFlowSeed, Status: metav1.ConditionFalse,
		Reason: millracev1beta1.ReasonSeedDiffers, Message: k.OtherSeed,
	}, k.OtherSeed != ""
}

// condition is no part of Ready: without a key the other fences of the tunnel stand.
func (k *TunnelKey) condition() metav1.Condition {
	if k.Reason == "" {
		return holds(millracev1beta1.ConditionTunnelKey, millracev1beta1.ReasonKeyInUse)
	}
	return metav1.Condition{
		Type: millracev1beta1.ConditionTunnelKey, Status: metav1.ConditionFalse, Reason: k.Reason, Message: k.Message,
	}
}
