// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const configIPv4 = "/proc/sys/net/ipv4/conf"

// strict is the value of rp_filter for strict mode (RFC 3704, section 2.2).
const strict = 1

// StrictlyFiltered returns the uplinks on which the kernel drops IPv4 packets whose replies would leave
// by another interface. A single uplink has no such packets.
func StrictlyFiltered(uplinks []string) []string {
	return strictlyFiltered(uplinks, func(name string) (int, error) {
		content, err := os.ReadFile(filepath.Join(configIPv4, name, "rp_filter"))
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(string(content)))
	})
}

// strictlyFiltered reads the settings by value. The maximum of the interface's setting and "all" applies
// (Documentation/networking/ip-sysctl.rst).
func strictlyFiltered(uplinks []string, value func(name string) (int, error)) []string {
	if len(uplinks) < 2 {
		return nil
	}
	all, err := value("all")
	if err != nil {
		return nil
	}
	var filtered []string
	for _, name := range uplinks {
		// A missing interface filters nothing.
		if own, err := value(name); err == nil && max(all, own) == strict {
			filtered = append(filtered, name)
		}
	}
	return filtered
}

// FilterProblems returns messages about uplinks with strict filtering.
func FilterProblems(filtered []string) (problems []string) {
	for _, name := range filtered {
		// sysctl(8) exchanges dots and slashes in names.
		problems = append(problems, fmt.Sprintf("%s filters strictly by the reverse path: IPv4 packets whose answers would leave by "+
			"another uplink are dropped. Run `sysctl -w net.ipv4.conf.%s.rp_filter=2`, also at each boot (/etc/sysctl.d)",
			name, strings.ReplaceAll(name, ".", "/")))
	}
	return problems
}
