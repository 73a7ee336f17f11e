// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"testing"
	"time"
)

// Down withdraws routes immediately, without hold timer or graceful restart.
func TestDownWithdraws(t *testing.T) {
	// The goal is 500 ms; the bound allows for load.
	const bound = 4 * time.Second
	l := newLab(t, staticNeighbor)
	p := l.speaker("fresh")
	p.set(testWant(testRoute(vip4), testRoute(vip6)))
	l.awaitRoutes(90*time.Second, both)
	// Keep the session down until the withdrawal is seen.
	l.Run("ip", "netns", "exec", l.RouterSpace, "nft", `
		table inet test {
			chain input {
				type filter hook input priority filter
				tcp dport 179 tcp flags & (syn | ack) == syn drop
			}
		}`)
	began := time.Now()
	if r := p.ask(request{Down: peerName}); r.Error != "" {
		t.Fatal(r.Error)
	}
	l.awaitRoutes(bound, map[string]string{})
	t.Logf("withdrawn from the router's kernel after %s", time.Since(began))
	if session := p.session(peerName); session.Message != "BFD session lost" {
		t.Errorf("%+v", session)
	}
}
