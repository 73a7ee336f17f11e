// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"text/template"

	"github.com/millrace-lb/millrace/lbagent/test/bird"
	"github.com/millrace-lb/millrace/lbagent/test/frr"
)

// options configure a router's session with the node.
type options struct {
	// Router and Node are the addresses of the session.
	Router, Node netip.Addr
	// ASN is the node's AS number.
	ASN                         uint32
	Password                    string
	TTLSecurity, Extended, Role bool
	// HoldTime is in seconds, Limit is the maximum number of IPv4 routes; zero for the router's default.
	HoldTime, Limit int
	// Dir is the directory of the router's files.
	Dir string
}

// implementation is a BGP speaker that runs as the router.
type implementation struct {
	name string
	// start runs the router until the test ends.
	start func(l *lab, o options) runningRouter
	// lacks are the names of the features that the router, or its version in Debian 12, does not have.
	lacks []string
}

type runningRouter struct {
	// routes returns the addresses of the received host routes.
	routes func() map[string]bool
	// refresh sends a ROUTE-REFRESH.
	refresh func()
	restart func()
}

var implementations = []implementation{
	{name: "OpenBGPD", start: startOpenBGPD, lacks: []string{extendedNextHopFeature}},
	// ExaBGP's SYN-ACKs have the default TTL.
	{name: "ExaBGP", start: startExaBGP, lacks: []string{gracefulRestartFeature, prefixLimitFeature, roleFeature, ttlSecurityFeature}},
}

func render(t *testing.T, text string, o options) string {
	t.Helper()
	var out strings.Builder
	if err := template.Must(template.New("").Parse(text)).Execute(&out, o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// file writes a file that only root can write, as OpenBGPD requires.
func (o options) file(t *testing.T, name, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(o.Dir, name)
	if err := os.WriteFile(path, []byte(render(t, content, o)), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// daemon runs a router's program in its namespace. restart kills it and starts it again.
func (l *lab) daemon(environment []string, command ...string) (restart func()) {
	l.t.Helper()
	var running *exec.Cmd
	stop := func() {
		// Children, such as OpenBGPD's, are in the same process group.
		_ = syscall.Kill(-running.Process.Pid, syscall.SIGKILL)
		_ = running.Wait()
	}
	start := func() {
		running = exec.Command("ip", append([]string{"netns", "exec", l.RouterSpace}, command...)...)
		running.Env = append(os.Environ(), environment...)
		running.Stdout, running.Stderr = l.t.Output(), l.t.Output()
		running.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := running.Start(); err != nil {
			l.t.Fatal(err)
		}
	}
	start()
	l.t.Cleanup(func() { stop() })
	return func() {
		stop()
		start()
	}
}

// output runs a command in the router's namespace and decodes its JSON. It returns false while the router does
// not answer.
func (l *lab) output(into any, command ...string) bool {
	out, err := exec.Command("ip", append([]string{"netns", "exec", l.RouterSpace}, command...)...).Output()
	return err == nil && json.Unmarshal(out, into) == nil
}

func addressOf(prefix string) string {
	address, _, _ := strings.Cut(prefix, "/")
	return address
}

func startFRR(l *lab, o options) runningRouter {
	l.Router = frr.Start(l.t, l.RouterSpace, render(l.t, ` neighbor {{.Node}} remote-as {{.ASN}}
 neighbor {{.Node}} timers connect 1
 neighbor {{.Node}} passive
{{if .Password}} neighbor {{.Node}} password {{.Password}}
{{end}}{{if .TTLSecurity}} neighbor {{.Node}} ttl-security hops 1
{{end}}{{if .HoldTime}} neighbor {{.Node}} timers 1 {{.HoldTime}}
{{end}}{{if .Role}} neighbor {{.Node}} local-role provider strict-mode
{{end}}{{if .Extended}} neighbor {{.Node}} capability extended-nexthop
{{end}} address-family ipv4 unicast
  neighbor {{.Node}} activate
{{if .Limit}}  neighbor {{.Node}} maximum-prefix {{.Limit}}
{{end}} exit-address-family
 address-family ipv6 unicast
  neighbor {{.Node}} activate
 exit-address-family
`, o))
	return runningRouter{
		routes: func() map[string]bool {
			routes := map[string]bool{}
			for prefix := range l.KernelRoutes() {
				routes[prefix] = true
			}
			return routes
		},
		refresh: func() { l.Clear(o.Node.String() + " soft in") },
		restart: l.RestartBGP,
	}
}

func startBIRD(l *lab, o options) runningRouter {
	router := bird.Start(l.t, l.RouterSpace, render(l.t, `protocol bgp node {
	local {{.Router}} as 64500;
	neighbor {{.Node}} as {{.ASN}};
	passive; graceful restart aware; connect retry time 1; error wait time 1, 1;
	{{if .Password}}password "{{.Password}}";{{end}}
	{{if .TTLSecurity}}ttl security on;{{end}}
	{{if .HoldTime}}hold time {{.HoldTime}};{{end}}
	{{if .Role}}local role provider; require roles;{{end}}
	ipv4 { import all; export none;
		{{if .Limit}}import limit {{.Limit}} action disable;{{end}}
		{{if .Extended}}extended next hop on;{{end}} };
	ipv6 { import all; export none; };
}
`, o))
	return runningRouter{
		routes:  l.birdRoutes,
		refresh: func() { router.Show("reload in node") },
		restart: router.Restart,
	}
}

func startOpenBGPD(l *lab, o options) runningRouter {
	// The service of Debian's package creates this directory.
	if err := os.MkdirAll("/run/openbgpd", 0o755); err != nil {
		l.t.Fatal(err)
	}
	configuration := o.file(l.t, "bgpd.conf", `AS 64500
router-id 198.51.100.1
fib-update no
socket "{{.Dir}}/bgpd.sock"
listen on {{.Router}}
neighbor {{.Node}} {
	remote-as {{.ASN}}
	passive
	announce IPv4 unicast
	announce IPv6 unicast
	announce enhanced refresh yes
	{{if .Password}}tcp md5sig password {{.Password}}{{end}}
	{{if .TTLSecurity}}ttl-security yes{{end}}
	{{if .HoldTime}}holdtime {{.HoldTime}}{{end}}
	{{if .Role}}announce policy provider enforce{{end}}
	{{if .Limit}}max-prefix {{.Limit}}{{end}}
}
allow from any
`, 0o600)
	control := []string{"bgpctl", "-s", filepath.Join(o.Dir, "bgpd.sock")}
	return runningRouter{
		routes: func() map[string]bool {
			var table struct{ RIB []struct{ Prefix string } }
			if !l.output(&table, append(control, "-j", "show", "rib")...) {
				return nil
			}
			routes := map[string]bool{}
			for _, route := range table.RIB {
				routes[addressOf(route.Prefix)] = true
			}
			return routes
		},
		refresh: func() {
			l.Run(append([]string{"ip", "netns", "exec", l.RouterSpace}, append(control, "neighbor", o.Node.String(), "refresh")...)...)
		},
		restart: l.daemon(nil, "bgpd", "-d", "-f", configuration),
	}
}

// ExaBGP has no RIB: it writes each UPDATE to a process, whose input is the file "updates".
func startExaBGP(l *lab, o options) runningRouter {
	process := o.file(l.t, "process", "#!/bin/sh\ntail -n 0 -F {{.Dir}}/commands 2>/dev/null &\nexec cat >{{.Dir}}/updates\n", 0o700)
	configuration := o.file(l.t, "exabgp.conf", `process updates { run `+process+`; encoder json; }
neighbor {{.Node}} {
	router-id 198.51.100.1; local-address {{.Router}}; local-as 64500; peer-as {{.ASN}}; passive;
	{{if .Password}}md5-password "{{.Password}}";{{end}}
	{{if .TTLSecurity}}outgoing-ttl 255; incoming-ttl 255;{{end}}
	{{if .HoldTime}}hold-time {{.HoldTime}};{{end}}
	family { ipv4 unicast; ipv6 unicast; }
	capability { route-refresh enable; {{if .Extended}}nexthop enable;{{end}} }
	{{if .Extended}}nexthop { ipv4 unicast ipv6; }{{end}}
	api { processes [ updates ]; neighbor-changes; receive { parsed; update; } }
}
`, 0o600)
	return runningRouter{
		routes: func() map[string]bool { return exaBGPRoutes(l.t, filepath.Join(o.Dir, "updates")) },
		refresh: func() {
			o.file(l.t, "commands", "announce route-refresh ipv4 unicast\n", 0o600)
		},
		restart: l.daemon([]string{
			"exabgp_tcp_bind=" + o.Router.String(), "exabgp_tcp_port=179", "exabgp_daemon_user=root", "exabgp_daemon_drop=false",
			"exabgp_api_cli=false", "exabgp_log_level=WARNING", "exabgp_log_destination=stdout",
		}, "exabgp", configuration),
	}
}

// exaBGPRoutes applies the UPDATEs of a session.
func exaBGPRoutes(t *testing.T, file string) map[string]bool {
	t.Helper()
	content, _ := os.ReadFile(file)
	routes := map[string]bool{}
	type prefix struct{ NLRI string }
	for line := range strings.Lines(string(content)) {
		var event struct {
			Type     string
			Neighbor struct {
				State   string
				Message struct {
					Update struct {
						// Both are keyed by the family, Announce by the next hop below.
						Announce map[string]map[string]json.RawMessage
						Withdraw map[string][]prefix
					}
				}
			}
		}
		if json.Unmarshal([]byte(line), &event) != nil {
			continue
		}
		if event.Type == "state" {
			clear(routes)
		}
		for _, withdrawn := range event.Neighbor.Message.Update.Withdraw {
			for _, p := range withdrawn {
				delete(routes, addressOf(p.NLRI))
			}
		}
		for _, byNextHop := range event.Neighbor.Message.Update.Announce {
			for _, announced := range byNextHop {
				// End-of-RIB is announced without a list of prefixes.
				var prefixes []prefix
				_ = json.Unmarshal(announced, &prefixes)
				for _, p := range prefixes {
					routes[addressOf(p.NLRI)] = true
				}
			}
		}
	}
	return routes
}
