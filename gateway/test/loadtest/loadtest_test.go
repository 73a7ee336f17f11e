// SPDX-License-Identifier: Apache-2.0

package loadtest

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"
)

var full = flag.Bool("full", false, "attack a proxy of 1 GiB with the full load, and limit the p99 of others to 250 ms; by default an eighth of it")

// part returns an eighth of a number, or with -full the number.
func part(count int) int {
	if *full {
		return count
	}
	return count / 8
}

func size() int { return part(1 << 30) }

// limit is the maximum of the 99th percentile of other clients' response times. CI machines are shared.
func limit() time.Duration {
	if *full {
		return 250 * time.Millisecond
	}
	return 2 * time.Second
}

// TestAttacks attacks a proxy, which must not crash and must serve other clients in time.
func TestAttacks(t *testing.T) {
	w := newWorld(t)
	w.attack(t, "hellos", 1, "-count", strconv.Itoa(part(5000)), "-waves", "5", "-sources", "20")
	w.attack(t, "idle", 4, "-count", strconv.Itoa(part(10_000)), "-sources", "5")
	// Each address has four pending guesses, which take 0.25 s each.
	w.attack(t, "guesses", 1, "-count", "64", "-sources", strconv.Itoa(part(16)), "-lasting", "2s")
	w.attack(t, "streams", 1, "-count", strconv.Itoa(part(200)), "-sources", "16", "-first", "100")
	if *full {
		w.attack(t, "questions", 1, "-count", strconv.Itoa(part(200)), "-sources", "16", "-first", "150")
		for _, kind := range slices.Sorted(maps.Keys(floods)) {
			w.attack(t, kind, 1, "-count", "64", "-sources", "8", "-lasting", "5s")
		}
	}
}

func (w *world) attack(t *testing.T, kind string, processes int, arguments ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	others := w.newClients(ctx)
	began := time.Now()
	var attackers []*attacker
	for i := range processes {
		attackers = append(attackers, startAttack(t, append([]string{
			"-attack", kind, "-target", w.secure, "-first", strconv.Itoa(2 + 5*i)}, arguments...)...))
	}
	for _, a := range attackers {
		select {
		case output := <-a.output:
			t.Log(output)
		case <-w.ended:
			w.alive(t)
		}
	}
	cancel()
	for _, other := range others {
		slow := other.slow(t)
		report := fmt.Sprintf("while %s came, %s", kind, other)
		if slow > limit() {
			t.Errorf("%s; want a p99 of at most %s", report, limit())
			continue
		}
		t.Log(report)
	}
	w.alive(t)
	t.Logf("%s within %s; maximum memory %s; shed %s", kind, time.Since(began).Round(time.Second), w.most(t), w.shed(t))
}
