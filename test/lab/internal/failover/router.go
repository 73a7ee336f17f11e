// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/millrace-lb/millrace/test/lab/internal/config"
)

type router interface {
	daemon() string
	bfdProgram() string
	// useBFD enables BFD of 100 ms × 3 with the nodes, also after a restart.
	useBFD(ctx context.Context, r *run, host string) error
	// graceful sets whether routes are retained while the daemon restarts (RFC 4724).
	graceful(ctx context.Context, r *run, host string, on bool) error
	// password sets the password of a family's sessions; empty removes it.
	password(ctx context.Context, r *run, host string, ipv6 bool, password string) error
	paths(ctx context.Context, r *run, host string, vip netip.Addr) (int, error)
}

func newRouter(program config.Router) router {
	if program == config.BIRD {
		return bird{}
	}
	return frr{}
}

type frr struct{}

func (frr) daemon() string { return "/bgpd" }

func (frr) bfdProgram() string { return "bfdd" }

// configure runs commands in a router's BGP configuration and saves it.
func (frr) configure(ctx context.Context, r *run, host string, lines ...string) error {
	args := []string{"vtysh", host, "--", "-c", "configure terminal", "-c", "router bgp 64512"}
	for _, line := range lines {
		args = append(args, "-c", line)
	}
	_, err := r.Run(ctx, append(args, "-c", "end", "-c", "write memory")...)
	return err
}

func (f frr) useBFD(ctx context.Context, r *run, host string) error {
	return f.configure(ctx, r, host, "neighbor nodes bfd profile fast", "neighbor nodes6 bfd profile fast")
}

func (f frr) graceful(ctx context.Context, r *run, host string, on bool) error {
	lines := []string{"bgp graceful-restart", "bgp graceful-restart preserve-fw-state"}
	if !on {
		lines = []string{"no bgp graceful-restart preserve-fw-state", "no bgp graceful-restart"}
	}
	if err := f.configure(ctx, r, host, lines...); err != nil {
		return err
	}
	// Capabilities are exchanged when sessions open.
	_, err := r.Run(ctx, "vtysh", host, "--", "-c", "clear bgp *")
	return err
}

func (f frr) password(ctx context.Context, r *run, host string, ipv6 bool, password string) error {
	group := "nodes"
	if ipv6 {
		group = "nodes6"
	}
	if password == "" {
		return f.configure(ctx, r, host, "no neighbor "+group+" password")
	}
	return f.configure(ctx, r, host, "neighbor "+group+" password "+password)
}

func (frr) paths(ctx context.Context, r *run, host string, vip netip.Addr) (int, error) {
	family := "ipv4"
	if vip.Is6() {
		family = "ipv6"
	}
	out, err := r.Run(ctx, "vtysh", host, "--", "-c", "show bgp "+family+" unicast "+vip.String()+" json")
	if err != nil {
		return 0, err
	}
	var route struct {
		Paths []json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(out, &route); err != nil {
		return 0, fmt.Errorf("%s: routes of %s: %w: %s", host, vip, err, out)
	}
	return len(route.Paths), nil
}

type bird struct{}

func (bird) daemon() string { return "/bird" }

func (bird) bfdProgram() string { return "bird" }

// useBFD does nothing, because the lab's BIRD always uses BFD.
func (bird) useBFD(context.Context, *run, string) error { return nil }

// graceful sets an option that applies at the daemon's next start.
func (bird) graceful(ctx context.Context, r *run, host string, on bool) error {
	option := ""
	if on {
		option = "-R"
	}
	_, err := r.Exec(ctx, host, "sh", "-c", "echo "+option+" > /etc/bird/options")
	return err
}

func (bird) password(ctx context.Context, r *run, host string, ipv6 bool, password string) error {
	file, line := "/etc/bird/nodes.options", ""
	if ipv6 {
		file = "/etc/bird/nodes6.options"
	}
	if password != "" {
		line = `password "` + password + `";`
	}
	if _, err := r.Exec(ctx, host, "sh", "-c", `echo "$1" > "$2"`, "sh", line, file); err != nil {
		return err
	}
	_, err := r.Run(ctx, "birdc", host, "--", "configure")
	return err
}

func (bird) paths(ctx context.Context, r *run, host string, vip netip.Addr) (int, error) {
	out, err := r.Run(ctx, "birdc", host, "--", "show", "route", "for", vip.String())
	// birdc fails if there is no route.
	if err != nil && !strings.Contains(string(out), "Network not found") {
		return 0, err
	}
	// One line per route: "203.0.113.10/32 unicast [node1 01:02:03.456] * (100) …".
	return strings.Count(string(out), "unicast ["), nil
}
