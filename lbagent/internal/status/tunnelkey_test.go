// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// The report contains the generations. A missing key is reported and does not affect Ready.
func TestTunnelKey(t *testing.T) {
	o := Observation{
		Interfaces: []millracev1beta1.InterfaceStatus{{Name: "eth0", XDPMode: millracev1beta1.XDPNative}},
		TunnelKey:  &TunnelKey{Ring: tunnelkey.Ring{Accepted: []uint32{4, 5}, Sending: 5, Required: true}},
	}
	report := &millracev1beta1.LBNodeReport{}
	report.Status.Conditions = []metav1.Condition{{Type: millracev1beta1.ConditionTunnelKeyCurrent, Status: metav1.ConditionFalse}}
	status := Build(o, report, metav1.Now())
	want := &millracev1beta1.TunnelKeysStatus{Accepted: []int64{4, 5}, Sending: 5, Required: true}
	if diff := cmp.Diff(want, status.TunnelKeys); diff != "" {
		t.Error(diff)
	}
	expect := func(status *millracev1beta1.LBNodeReportStatus, kind string, want metav1.ConditionStatus, reason string) {
		t.Helper()
		got := meta.FindStatusCondition(status.Conditions, kind)
		if got == nil || got.Status != want || got.Reason != reason {
			t.Errorf("%s is %+v, want %s %s", kind, got, want, reason)
		}
	}
	expect(&status, millracev1beta1.ConditionTunnelKeyProgrammed, metav1.ConditionTrue, millracev1beta1.ReasonKeyInUse)
	if seed := meta.FindStatusCondition(status.Conditions, millracev1beta1.ConditionFlowSeedConsistent); seed != nil {
		t.Errorf("FlowSeedConsistent with equal seeds = %+v", seed)
	}
	o.TunnelKey.OtherSeed = "the Secret has another seed"
	differs := Build(o, report, metav1.Now())
	expect(&differs, millracev1beta1.ConditionFlowSeedConsistent, metav1.ConditionFalse, millracev1beta1.ReasonSeedMismatch)
	expect(&differs, millracev1beta1.ConditionReady, metav1.ConditionTrue, millracev1beta1.ReasonReady)
	// The operator's condition is retained.
	expect(&status, millracev1beta1.ConditionTunnelKeyCurrent, metav1.ConditionFalse, "")

	o.TunnelKey = &TunnelKey{Reason: millracev1beta1.ReasonKeyMissing, Message: "there is no Secret"}
	status = Build(o, report, metav1.Now())
	expect(&status, millracev1beta1.ConditionTunnelKeyProgrammed, metav1.ConditionFalse, millracev1beta1.ReasonKeyMissing)
	expect(&status, millracev1beta1.ConditionReady, metav1.ConditionTrue, millracev1beta1.ReasonReady)
	if status.TunnelKeys != nil {
		t.Errorf("TunnelKeys without a key = %+v", status.TunnelKeys)
	}
}
