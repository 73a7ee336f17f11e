// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"path/filepath"
)

// Millrace returns what `millrace ARGS…` prints, run next to the API server.
func (c *Cluster) Millrace(ctx context.Context, args ...string) (string, error) {
	command := []string{filepath.Join(c.root, "bin", "millrace"), "--kubeconfig", c.kubeconfig()}
	out, err := c.Exec(ctx, "cp", append(command, args...)...)
	return string(out), err
}

// kubeconfig is the administrator's, as the lab writes it.
func (c *Cluster) kubeconfig() string {
	return filepath.Join(c.root, ".lab", "pki", "admin.kubeconfig")
}
