// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
)

// neighbours are agents whose networks contain 198.51.100.0/24; node3 does not answer.
type neighbours struct{ err error }

func (neighbours) Nodes() []string { return []string{"node2", "node3", "node1"} }

func (n neighbours) Run(_ context.Context, node string, args []string, out io.Writer) error {
	if n.err != nil {
		return n.err
	}
	if node == "node3" {
		return errors.New("connection refused")
	}
	line := consoleapi.Hosts{Node: node}
	for _, text := range args[1:] {
		address := netip.MustParseAddr(text)
		host := consoleapi.Host{Address: address, Interface: "eth0"}
		switch text {
		case "198.51.100.9":
			host.HardwareAddr = "02:00:00:00:00:09"
		case "198.51.100.254":
			host.HardwareAddr, host.Known = "02:00:00:00:00:fe", true
		case "198.51.100.11":
			host.Known = true
		}
		if netip.MustParsePrefix("198.51.100.0/24").Contains(address) {
			line.Hosts = append(line.Hosts, host)
		}
	}
	return json.NewEncoder(out).Encode(consoleapi.Line{Hosts: &line})
}

func TestDuplicates(t *testing.T) {
	const silent = "millrace: node3: connection refused\n"
	for line, test := range map[string]struct {
		agents         neighbours
		stdout, stderr string
		code           int
	}{
		"198.51.100.9 198.51.100.254 198.51.100.11 198.51.100.8 203.0.113.1": {stderr: silent, stdout: `
ADDRESS         MAC                NODE   INTERFACE  HOST
198.51.100.9    02:00:00:00:00:09  node1  eth0       another host
198.51.100.9    02:00:00:00:00:09  node2  eth0       another host
198.51.100.254  02:00:00:00:00:fe  node1  eth0       a node or a router
198.51.100.254  02:00:00:00:00:fe  node2  eth0       a node or a router
198.51.100.11   -                  node1  eth0       a node or a router
198.51.100.11   -                  node2  eth0       a node or a router
No host answers for 198.51.100.8. Probed by node1 on eth0, node2 on eth0.
203.0.113.1 was not probed: no network of an uplink of these nodes contains it.
`},
		"198.51.100.8 --node node2": {stdout: "\nNo host answers for 198.51.100.8. Probed by node2 on eth0.\n"},
		"198.51.100.9 --node node2 -o json": {stdout: `
{
  "nodes": [
    {
      "node": "node2",
      "hosts": [
        {
          "address": "198.51.100.9",
          "interface": "eth0",
          "hardwareAddress": "02:00:00:00:00:09"
        }
      ]
    }
  ]
}
`},
		"198.51.100.9 --node node3": {stderr: silent + "millrace: " + errAgentsFailed.Error() + "\n", code: exitError},
		"web":                       {stderr: "millrace: \"web\" is not an IP address; write 203.0.113.1 or 2001:db8:cafe::1\n", code: exitError},
		"198.51.100.9":              {agents: neighbours{fmt.Errorf("%w: pods/exec", cluster.ErrForbidden)}, stderr: "millrace: not allowed: pods/exec\n", code: exitError},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), environment{
			args: slices.Concat([]string{"millrace", "duplicates"}, strings.Fields(line)), stdout: &stdout, stderr: &stderr, width: 100,
			agents: func(cluster.Config, []corev1.Pod) (agents, error) { return test.agents, nil },
		})
		if stdout.String() != strings.TrimPrefix(test.stdout, "\n") || stderr.String() != test.stderr || code != test.code {
			t.Errorf("%s: code %d\n%s\n%s\nwant %d\n%s\n%s", line, code, stdout.String(), stderr.String(), test.code, test.stdout, test.stderr)
		}
	}
}
