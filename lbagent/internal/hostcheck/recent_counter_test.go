// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"testing"
	"time"
)

func TestRecentCounter(t *testing.T) {
	start := time.Unix(0, 0)
	var o recentCounter
	for _, step := range []struct {
		name          string
		after         time.Duration
		count         uint64
		changed, told bool
	}{
		{"counts of a previous agent", 0, 7, false, false},
		{"nothing new", time.Minute, 7, false, false},
		{"a drop", 2 * time.Minute, 8, true, true},
		{"another packet", 3 * time.Minute, 9, false, true},
		{"long after the first packet", 3*time.Minute + recentWindow - 1, 9, false, true},
		{"long after the last packet", 3*time.Minute + recentWindow, 9, true, false},
		{"again", time.Hour, 10, true, true},
		{"counters reset", 2 * time.Hour, 0, true, false},
	} {
		if changed := o.observe(step.count, start.Add(step.after)); changed != step.changed || o.reported.Load() != step.told {
			t.Errorf("%s: changed %v, reported %v; want %v, %v", step.name, changed, o.reported.Load(), step.changed, step.told)
		}
	}
}
