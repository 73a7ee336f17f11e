// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// Hosts writes the hosts that answered for addresses, and the addresses without an answer.
func Hosts(out io.Writer, nodes []consoleapi.Hosts, addresses []string, options Options) error {
	if options.Format == JSON {
		return encode(out, options.Format, map[string]any{"nodes": nodes})
	}
	t := &table{columns: []column{{heading: "ADDRESS"}, {heading: "MAC"}, {heading: "NODE", cut: true}, {heading: "INTERFACE"}, {heading: "HOST"}}}
	var remarks []string
	for _, text := range addresses {
		address, _ := netip.ParseAddr(text)
		targets, answered := []string{}, false
		for _, node := range nodes {
			for _, host := range node.Hosts {
				if host.Address != address.Unmap() {
					continue
				}
				targets = append(targets, node.Node+" on "+host.Interface)
				if host.HardwareAddr == "" && !host.Known {
					continue
				}
				answered = true
				whose := "another host"
				if host.Known {
					whose = "a node or a router"
				}
				t.rows = append(t.rows, []string{text, orNone(host.HardwareAddr), node.Node, host.Interface, whose})
			}
		}
		switch {
		case len(targets) == 0:
			remarks = append(remarks, fmt.Sprintf("%s was not probed: no network of an uplink of these nodes contains it.", text))
		case !answered:
			remarks = append(remarks, fmt.Sprintf("No host answers for %s. Probed by %s.", text, strings.Join(targets, ", ")))
		}
	}
	var lines []string
	if len(t.rows) > 0 {
		lines = t.lines(options.width())
	}
	for _, remark := range remarks {
		lines = append(lines, wrap(remark, options.width())...)
	}
	_, err := io.WriteString(out, strings.Join(lines, "\n")+"\n")
	return err
}
