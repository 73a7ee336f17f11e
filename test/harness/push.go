// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"net/netip"
	"path/filepath"
	"time"
)

// Push asks port 80 of a VIP by UDP for an answer at once and for another one after a time, and
// then asks again. It fails unless all come from the VIP and the pod saw one client throughout.
func (c *Cluster) Push(ctx context.Context, vip netip.Addr, after time.Duration) error {
	_, err := c.Exec(ctx, "client", filepath.Join(c.root, "bin", "echo"), "push",
		"--to", netip.AddrPortFrom(vip, 80).String(), "--after", after.String())
	return err
}
