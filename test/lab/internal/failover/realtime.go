// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
)

// realtimeScript gives a program on its host SCHED_FIFO.
//
//go:embed realtime.sh
var realtimeScript string

// runRealtime has BFD's programs run before the processes that keep a node busy. Kernels without
// CONFIG_RT_GROUP_SCHED let BFD's thread do that by itself. Others refuse it in pods, whose
// cgroups have no real-time bandwidth (docs/bfd.md); here they get some. A router has processors
// of its own.
func runRealtime(ctx context.Context, r *run) error {
	programs := map[string]string{}
	for _, host := range nodes {
		programs[host] = "lbbfd"
	}
	for _, host := range routers {
		programs[host] = r.routers.bfdProgram()
	}
	refused := 0
	for host, program := range programs {
		out, err := r.Exec(ctx, host, "sh", "-c", realtimeScript, "sh", program)
		if err != nil {
			return fmt.Errorf("%s: have %s run with SCHED_FIFO: %w", host, program, err)
		}
		if strings.TrimSpace(string(out)) != "given" {
			refused++
		}
	}
	if refused > 0 {
		r.remarks = append(r.remarks, fmt.Sprintf("SCHED_FIFO was refused on %d of %d hosts: start the lab from the root of the cgroups", refused, len(programs)))
	}
	return nil
}
