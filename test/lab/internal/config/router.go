// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

// Router is the routing software of the lab's routers.
type Router string

// The supported routers.
const (
	FRR  Router = "frr"
	BIRD Router = "bird"
)

// Routers returns all routers; the first is the default.
func Routers() []Router { return []Router{FRR, BIRD} }

// RouterNames returns the routers for messages.
func RouterNames() string {
	var names []string
	for _, router := range Routers() {
		names = append(names, string(router))
	}
	return strings.Join(names, ", ")
}

// ParseRouter returns the router with a name.
func ParseRouter(name string) (Router, error) {
	if router := Router(name); slices.Contains(Routers(), router) {
		return router, nil
	}
	return "", fmt.Errorf("the lab has no router %q: choose one of %s", name, RouterNames())
}

// Programs returns the required installed files.
func (r Router) Programs() []string {
	if r == BIRD {
		return []string{birdProgram, birdShell}
	}
	return []string{frrPrograms + "/zebra", frrPrograms + "/bgpd", frrPrograms + "/bfdd"}
}

// Summary returns a command that prints sessions and routes.
func (r Router) Summary() []string {
	if r == BIRD {
		return []string{"sh", "-c", "birdc show protocols; birdc show route"}
	}
	return []string{"vtysh", "-c", "show bgp summary", "-c", "show bgp ipv4 unicast", "-c", "show bgp ipv6 unicast"}
}

func (l Lab) router(spec machine.Spec, host topology.Host) (machine.Spec, []File, error) {
	if l.Router == BIRD {
		return l.bird(spec, host)
	}
	return l.frr(spec, host)
}

// preferred runs a command with high priority, because real routers do not share CPUs with nodes.
func preferred(command ...string) []string {
	return append([]string{"nice", "-n", "-20"}, command...)
}
