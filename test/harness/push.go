// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"net/netip"
	"path/filepath"
	"time"
)

// Push requests an answer from UDP port 80 of a VIP at once and after a delay, then sends again. All
// answers must come from the VIP, and the pod must see one client.
func (c *Cluster) Push(ctx context.Context, vip netip.Addr, after time.Duration) error {
	_, err := c.Exec(ctx, "client", filepath.Join(c.root, "bin", "echo"), "push",
		"--to", netip.AddrPortFrom(vip, 80).String(), "--after", after.String())
	return err
}
