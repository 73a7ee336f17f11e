// SPDX-License-Identifier: Apache-2.0

package report

import (
	"testing"
	"time"
)

func TestCauses(t *testing.T) {
	early, late := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	causes := Causes([]Problem{
		{Kind: "LBNode", Name: "a", Reason: "NotEstablished", Message: "router1: refused", Since: late},
		{Kind: "LBNode", Name: "b", Reason: "NotReady", Message: "pod agent-b: crash", common: "crash"},
		{Kind: "LBNode", Name: "c", Reason: "NotEstablished", Message: "router1: refused", Since: early},
		{Kind: "LBNode", Name: "d", Reason: "NotReady", Message: "pod agent-d: crash", common: "crash", Since: late},
		{Kind: "LBNode", Name: "e", Reason: "NotReady", Message: "pod agent-e: no image", common: "no image"},
		{Kind: "LBNode", Name: "f", Reason: "NotEstablished", Message: "router2: refused"},
	})
	for i, want := range []struct {
		object string
		since  time.Time
	}{{"LBNode/a and 1 more", early}, {"LBNode/b and 1 more", late}, {"LBNode/e", time.Time{}}, {"LBNode/f", time.Time{}}} {
		if len(causes) != 4 || causes[i].Object() != want.object || !causes[i].Since.Equal(want.since) {
			t.Fatalf("cause %d of %d is %s since %s, want %s since %s", i, len(causes), causes[i].Object(), causes[i].Since, want.object, want.since)
		}
	}
}
