// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"
)

func TestLongestGap(t *testing.T) {
	at := func(seconds ...float64) (times []time.Time) {
		for _, s := range seconds {
			times = append(times, time.Unix(0, int64(s*1e9)))
		}
		return times
	}
	for _, c := range []struct {
		failed []time.Time
		want   time.Duration
	}{
		{nil, 0},
		{at(5), 0},
		{at(5, 5.25), 250 * time.Millisecond},
		{at(5.5, 5, 9, 9.25), 500 * time.Millisecond},
		{at(1, 1.75, 2.5, 8), 1500 * time.Millisecond},
	} {
		if got := longestGap(c.failed); got != c.want {
			t.Errorf("failures at %v: longest gap %s, want %s", c.failed, got, c.want)
		}
	}
}
