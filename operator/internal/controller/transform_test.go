// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/canary"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Cached reports yield the same canary verdicts as whole reports.
func TestStrippedReportsKeepCanaries(t *testing.T) {
	ids, whole, cached := map[string]int32{"node1": 1, "node2": 2}, []millracev1beta1.LBNodeReport{}, []millracev1beta1.LBNodeReport{}
	for name := range ids {
		all := int32(0)
		now := metav1.Now()
		report := millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: name}}
		report.Status.Sessions = []millracev1beta1.SessionStatus{
			{Peer: "other", Address: "198.51.100.9", State: millracev1beta1.SessionEstablished},
			{
				Peer: "tor1/a", Address: "198.51.100.1", State: millracev1beta1.SessionEstablished, Since: &now, Message: "it came up",
				Canaries: []millracev1beta1.CanaryStatus{{
					Address: "203.0.113.250", Announced: true, Reached: "1", Unanswered: &all, ReachedBySmallProbes: "1",
				}},
			},
			{
				Peer: "tor2", Address: "198.51.100.2", State: millracev1beta1.SessionIdle,
				Canaries: []millracev1beta1.CanaryStatus{{Address: "203.0.113.251", Announced: true, Reached: "1-2"}},
			},
		}
		stripped, err := TransformReport(&report)
		if err != nil {
			t.Fatal(err)
		}
		whole, cached = append(whole, report), append(cached, *stripped.(*millracev1beta1.LBNodeReport))
	}
	want, got := canary.Judge(whole, ids), canary.Judge(cached, ids)
	if len(want) != 1 || want[0].Reason != millracev1beta1.ReasonRouteMissing {
		t.Fatalf("verdict of the reports = %+v", want)
	}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("verdict of the cached reports = %+v, want %+v", got, want)
	}
	for i := range cached {
		for _, session := range cached[i].Status.Sessions {
			if session.Since != nil || session.Message != "" {
				t.Errorf("cached session = %+v", session)
			}
		}
	}
}
