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

// runRealtime gives BFD programs real-time priority. Without CONFIG_RT_GROUP_SCHED BFD's thread sets it
// itself; otherwise pods need real-time bandwidth in their cgroups (docs/bfd.md), which this sets. Real
// routers do not share CPUs.
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
