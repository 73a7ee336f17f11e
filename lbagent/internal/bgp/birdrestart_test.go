// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bufio"
	"context"
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
	router.Await(60*time.Second, "the recovery ends, and the withdrawn route is removed", has(vip4, vip6))
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
	ctx, cancel := context.WithTimeout(l.t.Context(), 3*time.Minute)
	l.t.Cleanup(cancel)
	monitor := exec.CommandContext(ctx, "ip", "-n", l.RouterSpace, "-o", "monitor", "route")
	out, err := monitor.StdoutPipe()
	if err == nil {
		err = monitor.Start()
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return func() map[string]bool {
		// The monitor prints all earlier changes before this one.
		const last = "198.51.100.250"
		for _, change := range []string{"add", "del"} {
			if out, err := exec.Command("ip", "-n", l.RouterSpace, "route", change, "unreachable", last).CombinedOutput(); err != nil {
				l.t.Fatalf("ip route %s unreachable %s: %v: %s", change, last, err, out)
			}
		}
		lost, ended := map[string]bool{}, false
		for lines := bufio.NewScanner(out); !ended && lines.Scan(); {
			fields := strings.Fields(lines.Text())
			switch {
			case len(fields) < 3 || fields[0] != "Deleted":
			case fields[2] == last:
				ended = true
			default:
				lost[fields[1]] = true
			}
		}
		cancel()
		_ = monitor.Wait()
		if !ended {
			l.t.Errorf("ip monitor ended before it printed the deletion of %s", last)
		}
		return lost
	}
}
