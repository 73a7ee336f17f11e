// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func addresses(n int) []Address {
	list := make([]Address, n)
	for i := range list {
		list[i].AddrPort = netip.MustParseAddrPort(fmt.Sprintf("198.18.0.%d:80", i+1))
	}
	return list
}

func count(t *testing.T, set *Set, now time.Time, n int, keep bool) map[*Endpoint]int {
	t.Helper()
	counts := map[*Endpoint]int{}
	for range n {
		endpoint, err := set.Pick(now, nil)
		if err != nil {
			t.Fatal(err)
		}
		counts[endpoint]++
		if !keep {
			endpoint.Release()
		}
	}
	return counts
}

func TestPickTakesTheLessBusy(t *testing.T) {
	set := NewSet(&Settings{}, addresses(4), nil, start)
	for endpoint, n := range count(t, set, start, 4000, true) {
		if n < 950 || n > 1050 || endpoint.Active() != int64(n) {
			t.Errorf("%v received %d of 4000 requests (%d active); want about 1000", endpoint.Address, n, endpoint.Active())
		}
	}
}

// TestPickComparesTwo checks that the busier one of two endpoints gets no requests.
func TestPickComparesTwo(t *testing.T) {
	set := NewSet(&Settings{}, addresses(2), nil, start)
	busy := set.all[0]
	busy.active.Store(1 << 20)
	if taken := count(t, set, start, 100, true); taken[busy] != 0 {
		t.Errorf("the busy endpoint received %d of 100 requests; want 0", taken[busy])
	}
}

// TestPickComparesAnyTwo checks that the second choice is random: only the pair with the busiest endpoint, which
// is not its neighbor, selects the second busiest.
func TestPickComparesAnyTwo(t *testing.T) {
	set := NewSet(&Settings{}, addresses(4), nil, start)
	for i, active := range []int64{0, 200, 100, 300} {
		set.all[i].active.Store(active)
	}
	if taken := count(t, set, start, 500, false); taken[set.all[1]] == 0 || taken[set.all[3]] > 0 {
		t.Errorf("the second busiest of four endpoints received %d and the busiest %d of 500 requests; want about 83 and 0",
			taken[set.all[1]], taken[set.all[3]])
	}
}

func TestPickLimits(t *testing.T) {
	set := NewSet(&Settings{MaxRequests: 2}, addresses(3), nil, start)
	taken := count(t, set, start, 6, true)
	if len(taken) != 3 {
		t.Errorf("six requests were sent to %d endpoints; want 3", len(taken))
	}
	if _, err := set.Pick(start, nil); !errors.Is(err, ErrBusy) {
		t.Errorf("error %v; want ErrBusy", err)
	}
	set.all[1].Release()
	if endpoint, err := set.Pick(start, nil); err != nil || endpoint != set.all[1] {
		t.Errorf("Pick = %v, %v; want the endpoint below its limit", endpoint, err)
	}
	if _, err := NewSet(&Settings{}, nil, nil, start).Pick(start, nil); !errors.Is(err, ErrNone) {
		t.Errorf("error %v; want ErrNone", err)
	}
}

func TestPickLeavesOutTried(t *testing.T) {
	set := NewSet(&Settings{}, addresses(3), nil, start)
	for range 100 {
		endpoint, err := set.Pick(start, set.all[:2])
		if err != nil || endpoint != set.all[2] {
			t.Fatalf("Pick = %v, %v; want the endpoint that was not tried", endpoint, err)
		}
		endpoint.Release()
	}
	if _, err := set.Pick(start, set.all); err != nil {
		t.Errorf("Pick after all were tried: %v; want any endpoint", err)
	}
}

func TestDrainingGetsNoNewConnections(t *testing.T) {
	list := addresses(3)
	list[0].Draining = true
	set := NewSet(&Settings{}, list, nil, start)
	if n := count(t, set, start, 300, false)[set.all[0]]; n != 0 {
		t.Errorf("the draining endpoint received %d requests", n)
	}
	for i := range list {
		list[i].Draining = true
	}
	if n := len(count(t, NewSet(&Settings{}, list, set, start), start, 300, false)); n != 3 {
		t.Errorf("%d endpoints received requests; want all 3 if all are draining", n)
	}
}

func TestSlowStart(t *testing.T) {
	settings := &Settings{SlowStart: 10 * time.Second}
	first := NewSet(settings, addresses(2), nil, start)
	if !first.all[0].since.IsZero() {
		t.Error("slow start applies to the first endpoints of a backend")
	}
	count(t, first, start, 20, true)
	set := NewSet(settings, addresses(3), first, start)
	if set.all[0] != first.all[0] || set.all[0].Active() == 0 {
		t.Error("a remaining endpoint lost its state")
	}
	// The old endpoints have about ten each, so a tenth of the share is about one.
	if n := count(t, set, start, 10, true)[set.all[2]]; n > 3 {
		t.Errorf("a new endpoint received %d of 10 concurrent requests; want a tenth of the load", n)
	}
	count(t, set, start.Add(10*time.Second), 60, true)
	if a, b := set.all[0].Active(), set.all[2].Active(); b < a-3 || b > a+3 {
		t.Errorf("after the slow start the new endpoint has %d requests, another %d; want equal numbers", b, a)
	}
}

func TestEjection(t *testing.T) {
	settings := &Settings{EjectAfter: 3, EjectFor: 10 * time.Second, EjectForMost: 15 * time.Second}
	set := NewSet(settings, addresses(4), nil, start)
	bad := set.all[0]
	set.Failed(bad, start)
	set.Failed(bad, start)
	bad.Succeeded()
	set.Failed(bad, start)
	set.Failed(bad, start)
	if bad.Ejected(start) {
		t.Fatal("ejected after two consecutive failures; want three")
	}
	set.Failed(bad, start)
	if !bad.Ejected(start) || bad.Ejected(start.Add(10*time.Second)) {
		t.Fatal("want an ejection of ten seconds after three consecutive failures")
	}
	if n := count(t, set, start, 400, false)[bad]; n != 0 {
		t.Errorf("the ejected endpoint received %d requests", n)
	}
	if bad.Take(start) {
		t.Error("the ejected endpoint was selected")
	}
	later := start.Add(11 * time.Second)
	if n := count(t, set, later, 400, false)[bad]; n == 0 {
		t.Error("the endpoint received no request after its ejection")
	}
	for range 3 {
		set.Failed(bad, later)
	}
	if !bad.Ejected(later.Add(14*time.Second)) || bad.Ejected(later.Add(15*time.Second)) {
		t.Error("want the ejection time doubled up to the limit")
	}
}

func TestEjectionLimit(t *testing.T) {
	for n, want := range map[int]int{1: 0, 2: 1, 3: 1, 5: 2} {
		set := NewSet(&Settings{EjectAfter: 1, EjectFor: time.Minute, EjectForMost: time.Minute}, addresses(n), nil, start)
		ejected := 0
		for _, endpoint := range set.all {
			set.Failed(endpoint, start)
			if endpoint.Ejected(start) {
				ejected++
			}
		}
		if ejected != want {
			t.Errorf("%d endpoints fail, %d are ejected; want %d", n, ejected, want)
		}
	}
}
