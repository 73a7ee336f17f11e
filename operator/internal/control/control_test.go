// SPDX-License-Identifier: Apache-2.0

package control

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestPausesAreBounded(t *testing.T) {
	limiter, request := newRateLimiter(), reconcile.Request{}
	last := limiter.When(request)
	if last != FirstPause {
		t.Errorf("first pause = %s", last)
	}
	for range 50 {
		next := limiter.When(request)
		if next < last || next > longestPause {
			t.Errorf("pause %s is followed by %s", last, next)
		}
		last = next
	}
	if last != longestPause {
		t.Errorf("longest pause = %s, want %s", last, longestPause)
	}
}

func TestTruncate(t *testing.T) {
	for _, test := range []struct{ message, want string }{
		{"short", "short"},
		{strings.Repeat("x", 20), strings.Repeat("x", 20)},
		{strings.Repeat("x", 21), strings.Repeat("x", 16) + " ..."},
		{"x" + strings.Repeat("ä", 20), "x" + strings.Repeat("ä", 7) + " ..."},
	} {
		if got := Truncate(test.message, 20); got != test.want {
			t.Errorf("Truncate(%q) = %q, want %q", test.message, got, test.want)
		}
	}
}
