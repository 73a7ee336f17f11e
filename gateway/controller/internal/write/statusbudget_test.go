// SPDX-License-Identifier: Apache-2.0

package write

import (
	"testing"
	"time"
)

// TestSharesOfAPass checks that a long pass defers statuses only of namespaces that exceed their share.
func TestSharesOfAPass(t *testing.T) {
	var s statusBudget
	now := time.Unix(1e9, 0)
	s.begin()
	for i := range 10 * budgetPerNamespace {
		if !s.allow("many", now) {
			t.Fatalf("write %d is delayed although the pass is short", i)
		}
	}
	now = now.Add(unlimitedPeriod + time.Millisecond)
	if s.allow("many", now) || !s.isMore() {
		t.Error("a namespace with many writes is not delayed in a long pass")
	}
	for i := range 2 * budgetPerNamespace {
		if written := s.allow("few", now); written != (i < budgetPerNamespace) {
			t.Errorf("write %d of another namespace allowed = %t", i, written)
		}
	}
	s.begin()
	if s.isMore() || !s.allow("many", now) {
		t.Error("the new pass has no write budget")
	}
}
