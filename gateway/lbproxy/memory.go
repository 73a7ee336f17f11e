// SPDX-License-Identifier: Apache-2.0

package lbproxy

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/millrace-lb/millrace/gateway/proxy"
)

// cgroups is where a pod sees its own cgroup.
const cgroups = "/sys/fs/cgroup"

// memoryLimit reads the limit of the cgroup, version 2 or 1. 0 is none.
func memoryLimit(root string) int64 {
	for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue
		}
		// "max" is no number. Version 1 has one that is larger than any memory.
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && limit > 0 && limit < math.MaxInt64/2 {
			return limit
		}
	}
	return 0
}

// boundMemory has the collector stay below a limit, and divides it: six tenths are for what
// clients cost, a quarter of that for one of them. The rest is for the configuration, for
// connections to backends, and for what the collector has not found yet.
func boundMemory(limit int64, settings *proxy.Settings) {
	if limit == 0 {
		return
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		// The runtime knows nothing of the kernel's part.
		debug.SetMemoryLimit(limit / 8 * 7)
	}
	settings.MaxBytes = limit / 10 * 6
	settings.MaxClientBytes = settings.MaxBytes / 4
}
