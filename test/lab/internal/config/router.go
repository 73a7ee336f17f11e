// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

// Router is the program that the lab's routers run.
type Router string

// The programs.
const (
	FRR  Router = "frr"
	BIRD Router = "bird"
)

// Routers are all programs, the usual one first.
func Routers() []Router { return []Router{FRR, BIRD} }

// RouterNames are those of all programs, for people.
func RouterNames() string {
	var names []string
	for _, router := range Routers() {
		names = append(names, string(router))
	}
	return strings.Join(names, ", ")
}

// ParseRouter returns the program of a name.
func ParseRouter(name string) (Router, error) {
	if router := Router(name); slices.Contains(Routers(), router) {
		return router, nil
	}
	return "", fmt.Errorf("the lab has no router %q: choose one of %s", name, RouterNames())
}

// Programs returns the files that routers need installed.
func (r Router) Programs() []string {
	if r == BIRD {
		return []string{birdProgram, birdShell}
	}
	return []string{frrPrograms + "/zebra", frrPrograms + "/bgpd", frrPrograms + "/bfdd"}
}

// Summary is a command that shows the sessions and routes of a router.
func (r Router) Summary() []string {
	if r == BIRD {
		return []string{"sh", "-c", "birdc show protocols; birdc show route"}
	}
	return []string{"vtysh", "-c", "show bgp summary", "-c", "show bgp ipv4 unicast", "-c", "show bgp ipv6 unicast"}
}

// router is the machine of a router.
func (l Lab) router(spec machine.Spec, host topology.Host) (machine.Spec, []File, error) {
	if l.Router == BIRD {
		return l.bird(spec, host)
	}
	return l.frr(spec, host)
}

// preferred is a command that goes before those of the nodes: a router does not share its
// processors with them.
func preferred(command ...string) []string {
	return append([]string{"nice", "-n", "-20"}, command...)
}
