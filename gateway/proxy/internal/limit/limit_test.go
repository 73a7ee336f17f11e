// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/gateway/resource"
)

var (
	alice = netip.MustParseAddr("198.51.100.1")
	bob   = netip.MustParseAddr("203.0.113.1")
	noon  = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
)

func rule(t testing.TB, from *resource.ClientLimit) *Rule {
	t.Helper()
	made, err := New(from, "route")
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestRate(t *testing.T) {
	table := NewTable(100)
	second := rule(t, &resource.ClientLimit{Requests: 2, Period: 1000, Burst: 4})
	begin := func(rule *Rule, client netip.Addr, after time.Duration, want Result) {
		t.Helper()
		counted, got := table.Begin(rule, client, noon.Add(after))
		counted.End()
		if got != want {
			t.Errorf("%s after %v: %v; want %v", client, after, got, want)
		}
	}
	for range 4 {
		begin(second, alice, 0, Admitted)
	}
	begin(second, alice, 0, RateExceeded)
	begin(second, bob, 0, Admitted)
	begin(second, alice, 400*time.Millisecond, RateExceeded)
	begin(second, alice, 600*time.Millisecond, Admitted)
	begin(second, alice, 600*time.Millisecond, RateExceeded)
	begin(rule(t, &resource.ClientLimit{Zone: "other", Requests: 2, Period: 1000, Burst: 4}), alice, 0, Admitted)
	begin(rule(t, &resource.ClientLimit{Requests: 2, Period: 1000, Burst: 5}), alice, 0, Admitted)
	begin(rule(t, &resource.ClientLimit{Zone: "route", Requests: 2, Period: 1000, Burst: 4}), alice, 600*time.Millisecond, RateExceeded)
	minute := rule(t, &resource.ClientLimit{Requests: 1, Period: 60_000})
	begin(minute, alice, 0, Admitted)
	begin(minute, alice, 59*time.Second, RateExceeded)
	begin(minute, alice, 61*time.Second, Admitted)
	// IPv6 is counted by /64, IPv4-mapped addresses as IPv4.
	for i := range 4 {
		begin(second, netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i)), 0, Admitted)
	}
	begin(second, netip.MustParseAddr("2001:db8::ffff"), 0, RateExceeded)
	begin(second, netip.MustParseAddr("2001:db8:0:1::1"), 0, Admitted)
	begin(second, netip.MustParseAddr("::ffff:198.51.100.1"), 600*time.Millisecond, RateExceeded)
	exempt := rule(t, &resource.ClientLimit{Requests: 1, Period: 60_000, Exempt: []string{"198.51.100.0/24"}})
	for range 10 {
		begin(exempt, alice, 0, Admitted)
	}
	begin(exempt, bob, 0, Admitted)
	begin(exempt, bob, 0, RateExceeded)
	begin(exempt, netip.Addr{}, 0, Admitted)
	begin(exempt, netip.Addr{}, 0, RateExceeded)
}

// TestConcurrent checks that exactly the permitted number of requests is admitted.
func TestConcurrent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 4).Draw(t, "most")
		limited, err := New(&resource.ClientLimit{Concurrent: uint32(most)}, "route")
		if err != nil {
			t.Fatal(err)
		}
		table := NewTable(100)
		open := map[netip.Addr][]*Counted{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			client := rapid.SampledFrom([]netip.Addr{alice, bob}).Draw(t, "client")
			if len(open[client]) > 0 && rapid.Bool().Draw(t, "end") {
				open[client][0].End()
				open[client] = open[client][1:]
				continue
			}
			counted, got := table.Begin(limited, client, noon)
			if (got == Admitted) != (len(open[client]) < most) || got == RateExceeded {
				t.Fatalf("%v with %d of %d requests in progress", got, len(open[client]), most)
			}
			if got == Admitted {
				open[client] = append(open[client], counted)
			}
		}
	})
}

// TestTableIsBounded checks that ending the requests of an evicted client is harmless.
func TestTableIsBounded(t *testing.T) {
	table := NewTable(10)
	one := rule(t, &resource.ClientLimit{Concurrent: 1})
	first, _ := table.Begin(one, alice, noon)
	for i := range 20 {
		counted, got := table.Begin(one, netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), noon)
		if got != Admitted {
			t.Fatal(got)
		}
		counted.End()
	}
	if table.clients.Len() != 10 {
		t.Errorf("%d clients; want 10", table.clients.Len())
	}
	again, got := table.Begin(one, alice, noon)
	if got != Admitted {
		t.Errorf("evicted client: %v", got)
	}
	first.End()
	if _, got := table.Begin(one, alice, noon); got != ConcurrencyExceeded {
		t.Errorf("with one in progress: %v", got)
	}
	again.End()
}

func TestUnreadable(t *testing.T) {
	for name, from := range map[string]*resource.ClientLimit{
		"nothing": {}, "no period": {Requests: 1}, "a status": {Concurrent: 1, Status: 200}, "a status of no class": {Concurrent: 1, Status: 600},
		"an exemption": {Concurrent: 1, Exempt: []string{"a"}},
	} {
		if _, err := New(from, ""); err == nil {
			t.Errorf("no error for %s", name)
		}
	}
	if got := rule(t, &resource.ClientLimit{Concurrent: 1}).Status; got != 503 {
		t.Errorf("status %d; want 503", got)
	}
}
