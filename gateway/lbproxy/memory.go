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

// cgroups is the mount point of the pod's own cgroup.
const cgroups = "/sys/fs/cgroup"

// memoryLimit returns the memory limit of the cgroup, version 2 or 1, or 0 if unlimited.
func memoryLimit(root string) int64 {
	for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue
		}
		// Unlimited is "max" in version 2, and a number beyond any memory size in version 1.
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && limit > 0 && limit < math.MaxInt64/2 {
			return limit
		}
	}
	return 0
}

// limitMemory allots 60 percent to requests, a quarter of that to a single client. The rest is for
// configuration, backend connections and garbage.
func limitMemory(limit int64, settings *proxy.Settings) {
	if limit == 0 {
		return
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		// The runtime does not account for the kernel's memory of the cgroup.
		debug.SetMemoryLimit(limit / 8 * 7)
	}
	settings.MaxBytes = limit / 10 * 6
	settings.MaxClientBytes = settings.MaxBytes / 4
}
