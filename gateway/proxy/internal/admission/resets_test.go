// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"
	"time"
)

func TestResets(t *testing.T) {
	l := New(Limits{})
	now := time.Unix(1_800_000_000, 0)
	conn, _ := l.Open(alice, false, func() {})
	resets := func(at time.Time) (count int) {
		for count < 1000 && !conn.Reset(at) {
			count++
		}
		return count
	}
	if n := resets(now); n != resetBurst {
		t.Errorf("%d resets allowed immediately; want %d", n, resetBurst)
	}
	if n := resets(now.Add(3 * time.Second)); n != 3*resetRate {
		t.Errorf("%d allowed after three seconds; want %d", n, 3*resetRate)
	}
	if n := resets(now.Add(time.Hour)); n != resetBurst {
		t.Errorf("%d allowed after one hour; want %d", n, resetBurst)
	}
	conn.Close()
	if conn.Reset(now.Add(time.Hour)) {
		t.Error("closing the connection counts as a reset")
	}
	if conn, _ = l.Open(alice, true, func() {}); resets(now) != 1000 {
		t.Error("resets of a front proxy are limited")
	}
}
