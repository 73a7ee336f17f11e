// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"path/filepath"
)

// Status returns what `millrace status` prints, run next to the API server.
func (c *Cluster) Status(ctx context.Context) (string, error) {
	out, err := c.Exec(ctx, "cp", filepath.Join(c.root, "bin", "millrace"), "--kubeconfig", c.kubeconfig(), "status")
	return string(out), err
}

// kubeconfig is the administrator's, as the lab writes it.
func (c *Cluster) kubeconfig() string {
	return filepath.Join(c.root, ".lab", "pki", "admin.kubeconfig")
}
