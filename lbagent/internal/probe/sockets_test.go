// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

type held struct {
	address netip.Addr
	open    map[netip.Addr]int
}

func (h held) Close() error {
	h.open[h.address]--
	return nil
}

// Sockets are opened once, closed when unused, and retried after a delay.
func TestSockets(t *testing.T) {
	first, second := netip.MustParseAddr("198.51.100.2"), netip.MustParseAddr("2001:db8::2")
	open, refused, attempts := map[netip.Addr]int{}, map[netip.Addr]bool{second: true}, 0
	sockets := Sockets[held]{Retry: time.Second, Subject: "Nodes", Logger: logr.Discard(), Open: func(local netip.Addr) (held, error) {
		attempts++
		if refused[local] {
			return held{}, errors.New("no such address")
		}
		open[local]++
		return held{local, open}, nil
	}}
	expect := func(what string, tried int, want ...netip.Addr) {
		t.Helper()
		have := slices.SortedFunc(maps.Keys(sockets.All()), netip.Addr.Compare)
		if !slices.Equal(have, want) || attempts != tried {
			t.Errorf("%s: %v after %d attempts, want %v after %d", what, have, attempts, want, tried)
		}
		for address, count := range open {
			if _, found := sockets.At(address); found != (count == 1) || count > 1 {
				t.Errorf("%s: %s is open %d times, found = %t", what, address, count, found)
			}
		}
	}
	now := time.Now()
	both := map[netip.Addr]bool{first: true, second: true}
	sockets.Need(both, now)
	expect("one address refused", 2, first)
	sockets.Need(maps.Clone(both), now.Add(time.Second/2))
	sockets.Reopen(now.Add(time.Second / 2))
	expect("too early", 2, first)
	refused[second] = false
	sockets.Reopen(now.Add(time.Second))
	expect("retried after a failure", 3, first, second)
	sockets.Reopen(now.Add(time.Minute))
	expect("all sockets open", 3, first, second)
	sockets.Need(map[netip.Addr]bool{second: true}, now)
	expect("one left", 3, second)
	// A changed set is opened immediately, even while another address fails.
	refused[first] = true
	sockets.Need(both, now)
	refused[first] = false
	sockets.Need(map[netip.Addr]bool{first: true}, now)
	expect("different addresses", 5, first)
	sockets.Close()
	expect("closed", 5)
}
