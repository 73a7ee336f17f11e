// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/canary"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// An LBPeer reports the fault of any of its routers, and no condition without canaries.
func TestPathsVerified(t *testing.T) {
	verdict := func(peer, address, reason string) canary.Verdict {
		return canary.Verdict{Router: canary.Router{Peer: peer, Address: address}, Reason: reason}
	}
	const good, missing, unknown = millracev1beta1.ReasonPathsVerified, millracev1beta1.ReasonRouteMissing, millracev1beta1.ReasonPending
	const hashed = millracev1beta1.ReasonHashIgnoresPorts
	for name, test := range map[string]struct {
		verdicts []canary.Verdict
		status   metav1.ConditionStatus
		reason   string
	}{
		"no session":               {nil, metav1.ConditionUnknown, unknown},
		"other LBPeer":             {[]canary.Verdict{verdict("tor2", "198.51.100.1", missing)}, metav1.ConditionUnknown, unknown},
		"reached":                  {[]canary.Verdict{verdict("tor1", "198.51.100.1", good)}, metav1.ConditionTrue, good},
		"unknown result":           {[]canary.Verdict{verdict("tor1", "198.51.100.1", unknown)}, metav1.ConditionUnknown, unknown},
		"result not determinable":  {[]canary.Verdict{verdict("tor1", "198.51.100.1", hashed)}, metav1.ConditionUnknown, hashed},
		"known for another router": {[]canary.Verdict{verdict("tor1", "198.51.100.1", hashed), verdict("tor1", "198.51.100.9", good)}, metav1.ConditionTrue, good},
		"one of two":               {[]canary.Verdict{verdict("tor1", "198.51.100.1", missing), verdict("tor1", "198.51.100.9", good)}, metav1.ConditionFalse, missing},
		"second of two routers":    {[]canary.Verdict{verdict("tor1", "198.51.100.1", good), verdict("tor1", "198.51.100.9", missing)}, metav1.ConditionFalse, missing},
	} {
		t.Run(name, func(t *testing.T) {
			peer := &millracev1beta1.LBPeer{ObjectMeta: metav1.ObjectMeta{Name: "tor1"}}
			peer.Spec.Canaries = []string{"203.0.113.250"}
			setReached(peer, test.verdicts)
			condition := meta.FindStatusCondition(peer.Status.Conditions, millracev1beta1.ConditionPathsVerified)
			if condition == nil || condition.Status != test.status || condition.Reason != test.reason {
				t.Errorf("condition %+v, want %s with %s", condition, test.status, test.reason)
			}
			peer.Spec.Canaries = nil
			if setReached(peer, test.verdicts); len(peer.Status.Conditions) > 0 {
				t.Errorf("conditions = %+v without canaries, want none", peer.Status.Conditions)
			}
		})
	}
}
