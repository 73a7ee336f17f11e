// SPDX-License-Identifier: Apache-2.0

//go:build long

package bgp

import (
	"bytes"
	"os/exec"
)

func init() {
	implementations = append(implementations,
		implementation{name: "FRR", start: startFRR},
		// BIRD 2.0 may reset the connection before it sends the NOTIFICATION of an import limit.
		implementation{name: "BIRD", start: startBIRD, lacks: []string{prefixLimitFeature}},
		// A soft reset of GoBGP sends no ROUTE-REFRESH.
		implementation{name: "GoBGP", start: startGoBGP, lacks: []string{refreshFeature, roleFeature}},
	)
}

// tool builds a program of a module in hack/tools and returns its path.
func (l *lab) tool(module, name string) string {
	l.t.Helper()
	cmd := exec.Command("go", "tool", "-C", "../../../hack/tools/"+module, "-n", name)
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		l.t.Fatalf("build %s: %v: %s", name, err, failure.Bytes())
	}
	return string(bytes.TrimSpace(out))
}

func startGoBGP(l *lab, o options) runningRouter {
	daemon, control := l.tool("gobgp", "gobgpd"), l.tool("gobgp", "gobgp")
	configuration := o.file(l.t, "gobgpd.toml", `[global.config]
as = 64500
router-id = "198.51.100.1"
local-address-list = ["{{.Router}}"]
[[neighbors]]
[neighbors.config]
neighbor-address = "{{.Node}}"
peer-as = {{.ASN}}
{{if .Password}}auth-password = "{{.Password}}"{{end}}
[neighbors.transport.config]
passive-mode = true
local-address = "{{.Router}}"
[neighbors.graceful-restart.config]
enabled = true
helper-only = true
restart-time = 60
{{if .HoldTime}}
[neighbors.timers.config]
hold-time = {{.HoldTime}}
keepalive-interval = 1
{{end}}{{if .TTLSecurity}}
[neighbors.ttl-security.config]
enabled = true
ttl-min = 255
{{end}}
[[neighbors.afi-safis]]
[neighbors.afi-safis.config]
afi-safi-name = "ipv4-unicast"
[neighbors.afi-safis.mp-graceful-restart.config]
enabled = true
{{if .Limit}}
[neighbors.afi-safis.prefix-limit.config]
max-prefixes = {{.Limit}}
{{end}}
[[neighbors.afi-safis]]
[neighbors.afi-safis.config]
afi-safi-name = "ipv6-unicast"
[neighbors.afi-safis.mp-graceful-restart.config]
enabled = true
`, 0o600)
	const api = "127.0.0.1:50051"
	return runningRouter{
		routes: func() map[string]bool {
			routes := map[string]bool{}
			for _, family := range []string{"ipv4", "ipv6"} {
				var table map[string]any
				if !l.output(&table, control, "-j", "global", "rib", "-a", family) {
					return nil
				}
				for prefix := range table {
					routes[addressOf(prefix)] = true
				}
			}
			return routes
		},
		restart: l.daemon(nil, daemon, "-f", configuration, "--api-hosts", api),
	}
}
