// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// configIPv4 has the settings of interfaces.
const configIPv4 = "/proc/sys/net/ipv4/conf"

// strict is the value of rp_filter that RFC 3704 section 2.2 calls strict.
const strict = 1

// StrictlyFiltered returns those of several uplinks on which the kernel drops IPv4 packets whose
// answers would leave by another interface. A single uplink has all answers.
func StrictlyFiltered(uplinks []string) []string {
	return strictlyFiltered(uplinks, func(name string) (int, error) {
		content, err := os.ReadFile(filepath.Join(configIPv4, name, "rp_filter"))
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(string(content)))
	})
}

// strictlyFiltered reads the settings by value. The larger of an interface's and of "all" counts
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
		// An interface that is gone filters nothing.
		if own, err := value(name); err == nil && max(all, own) == strict {
			filtered = append(filtered, name)
		}
	}
	return filtered
}

// FilterProblems says what to do about uplinks that are strictly filtered.
func FilterProblems(filtered []string) (problems []string) {
	for _, name := range filtered {
		// sysctl(8) takes a dot of a name for a slash, and the other way round.
		problems = append(problems, fmt.Sprintf("%s filters strictly by the reverse path: IPv4 packets whose answers would leave by "+
			"another uplink are dropped. Run `sysctl -w net.ipv4.conf.%s.rp_filter=2`, also at each boot (/etc/sysctl.d)",
			name, strings.ReplaceAll(name, ".", "/")))
	}
	return problems
}
