// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"testing"
	"time"
)

// A session that is taken down withdraws its routes from the router at once: it does not wait
// for the hold timer, nor keeps the router them for a restart.
func TestDownWithdraws(t *testing.T) {
	// The figure that is wanted is 500 ms; the test's bound allows for a busy machine.
	const bound = 4 * time.Second
	l := newLab(t, staticNeighbor)
	p := l.speaker("fresh")
	p.set(testWant(testRoute(vip4), testRoute(vip6)))
	l.awaitRoutes(90*time.Second, both)
	// The session does not come back before it was seen to have gone.
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
	t.Logf("withdrawn in the router's kernel after %s", time.Since(began))
	if session := p.session(peerName); session.Message != "BFD session lost" {
		t.Errorf("%+v", session)
	}
}
