// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"maps"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/test/bird"
)

// A graceful restart of BIRD loses no IPv4 route in its kernel and removes stale routes. IPv6 is not
// checked, because BIRD 2.0 removes a changed IPv6 route first.
func TestRestartOfBIRDKeepsRoutes(t *testing.T) {
	l := newLink(t)
	router := bird.Start(t, l.RouterSpace, strings.Replace(birdNeighbor("graceful restart on;"), "graceful restart aware; ", "", 1))
	p := l.speaker("fresh")
	gone := "203.0.113.11"
	p.set(testWant(testRoute(vip4), testRoute(vip6), testRoute(gone)))
	has := func(prefixes ...string) func() bool {
		return func() bool {
			routes := l.birdRoutes()
			for _, prefix := range prefixes {
				if !routes[prefix] {
					return false
				}
			}
			return len(routes) == len(prefixes)
		}
	}
	router.Await(20*time.Second, "the routes in the kernel", has(vip4, vip6, gone))
	// Without End-of-RIB there is no recovery.
	l.await(p, 20*time.Second, "up", isUp)

	lost := l.watchRoutes()
	router.Restart()
	// A withdrawal during the restart.
	p.set(testWant(testRoute(vip4), testRoute(vip6)))
	router.Await(60*time.Second, "the recovery ends, and the route goes that the node has withdrawn", has(vip4, vip6))
	routes := lost()
	delete(routes, vip6)
	if !maps.Equal(routes, map[string]bool{gone: true}) {
		t.Errorf("routes removed from the kernel: %v, want only %s", routes, gone)
	}
}

func (l *lab) birdRoutes() map[string]bool {
	l.t.Helper()
	routes := map[string]bool{}
	for _, family := range []string{"-4", "-6"} {
		out, err := exec.Command("ip", family, "-n", l.RouterSpace, "-o", "route", "show", "proto", "bird").Output()
		if err != nil {
			l.t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			routes[strings.Fields(line)[0]] = true
		}
	}
	return routes
}

// watchRoutes returns a function that stops and returns the destinations deleted from the router's kernel.
func (l *lab) watchRoutes() func() map[string]bool {
	l.t.Helper()
	var out strings.Builder
	monitor := exec.Command("ip", "-n", l.RouterSpace, "-o", "monitor", "route")
	monitor.Stdout = &out
	if err := monitor.Start(); err != nil {
		l.t.Fatal(err)
	}
	return func() map[string]bool {
		_ = monitor.Process.Kill()
		_ = monitor.Wait()
		lost := map[string]bool{}
		for line := range strings.Lines(out.String()) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Deleted" {
				lost[fields[1]] = true
			}
		}
		return lost
	}
}
