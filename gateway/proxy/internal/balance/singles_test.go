// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestSingles checks that connections and ports stay within the limits and are all released.
func TestSingles(t *testing.T) {
	clients := []netip.Addr{{}, netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2"), netip.MustParseAddr("2001:db8::")}
	rapid.Check(t, func(t *rapid.T) {
		endpoint := &Endpoint{settings: &Settings{MaxRequests: 8, MaxPorts: 6}}
		now := time.Unix(1_700_000_000, 0)
		type held struct {
			client  netip.Addr
			request bool
			end     func(bool, time.Time)
		}
		var open []held
		var resting []usedPort
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				now = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
			case 1:
				if len(open) == 0 {
					continue
				}
				at, rests := rapid.IntRange(0, len(open)-1).Draw(t, "which"), rapid.Bool().Draw(t, "rests")
				open[at].end(rests, now)
				if rests {
					resting = append(resting, usedPort{open[at].client, now.Add(timeWait)})
				}
				open = append(open[:at], open[at+1:]...)
			case 2:
				client, request := rapid.SampledFrom(clients).Draw(t, "client"), rapid.Bool().Draw(t, "request")
				ports, mine, requests, own := 0, 0, 0, 0
				for _, each := range open {
					ports++
					if each.client == client {
						mine++
					}
					if each.request {
						requests++
						if each.client == client {
							own++
						}
					}
				}
				for _, each := range resting {
					if each.until.After(now) {
						ports++
						if each.client == client {
							mine++
						}
					}
				}
				want := ports < 6 && (!client.IsValid() || mine < 3)
				if request {
					want = want && requests < 4 && (!client.IsValid() || own < 2)
				}
				end, ok := endpoint.TakeSingle(client, request, now)
				if ok != want {
					t.Fatalf("connection of %s: %v, want %v; %d ports, %d of the client, %d requests, %d of the client", client, ok, want, ports, mine, requests, own)
				}
				if ok {
					open = append(open, held{client, request, end})
				}
			}
		}
		for _, each := range open {
			each.end(true, now)
		}
		now = now.Add(timeWait)
		endpoint.singles.expire(now)
		if s := &endpoint.singles; s.open.all+s.ports.all+len(s.open.of)+len(s.ports.of)+len(s.inTimeWait) != 0 {
			t.Fatalf("counters are not zero after release: %+v", s)
		}
	})
}
