// SPDX-License-Identifier: Apache-2.0

package lbproxy

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercentFor(t *testing.T) {
	for name, test := range map[string]struct {
		alive uint64
		want  int
	}{
		"nothing":  {0, 1600},
		"a little": {8 << 20, 800},
		"as much":  {64 << 20, 100},
		"a lot":    {200 << 20, 100},
	} {
		if got := percentFor(test.alive); got != test.want {
			t.Errorf("%s: %d %%, want %d", name, got, test.want)
		}
	}
}

func percentage() int {
	now := debug.SetGCPercent(100)
	debug.SetGCPercent(now)
	return now
}

var ballast []byte

// TestTuneCollector checks that the percentage follows the heap and is reset at the end.
func TestTuneCollector(t *testing.T) {
	await := func(what string, met func(int) bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !met(percentage()); runtime.GC() {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the GC percentage is still %d", what, percentage())
			}
		}
	}
	stop := tuneCollector()
	await("a small heap", func(now int) bool { return now > 400 })
	ballast = make([]byte, 100<<20)
	await("a large heap", func(now int) bool { return now == 100 })
	ballast = nil
	await("small heap after a large one", func(now int) bool { return now > 400 })
	stop()
	if now := percentage(); now != 100 {
		t.Errorf("the GC percentage is still %d, want 100", now)
	}
}
