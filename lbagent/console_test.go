// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
)

// The console shows the decisions of the last pass, also after a pass that failed before its decisions.
func TestConsoleReturnsLastDecisions(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 0)
	addService(objects, 2, true, 0, 1)
	l := newLoop(n, objects)
	if l.published.Decisions() != nil {
		t.Fatal("Decisions is not nil before the first pass")
	}
	mustPass(t, l, start)
	check := func() {
		t.Helper()
		got := l.published.Decisions()
		if got == nil || !got.Time.Equal(start) || len(got.VIPs) != 2 {
			t.Fatalf("decisions %+v, want two from the first pass", got)
		}
		if first := got.VIPs[0].Observed(got.Established); first.VIP != vipOf(1) || len(first.Peers) != 1 {
			t.Errorf("first VIP %+v, want it announced to router", first)
		}
		if second := got.VIPs[1]; second.Reason != announce.ReasonNoLocalEndpoint {
			t.Errorf("second VIP %+v, want %s", second, announce.ReasonNoLocalEndpoint)
		}
	}
	check()
	l.maps.Invalidate()
	n.fails = func(what string) bool { return what == "Dump" }
	if _, err := l.pass(start.Add(time.Minute)); err == nil {
		t.Fatal("no error from a pass that cannot read the maps")
	}
	check()
}
