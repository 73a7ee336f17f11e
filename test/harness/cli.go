// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// Millrace returns what `millrace ARGS…` prints, run next to the API server.
func (c *Cluster) Millrace(ctx context.Context, args ...string) (string, error) {
	out, err := c.Exec(ctx, "cp", c.millrace(args...)...)
	return string(out), err
}

// MillraceAs returns what `millrace ARGS…` prints for a user, and what it prints to standard error.
func (c *Cluster) MillraceAs(ctx context.Context, user string, args ...string) (out, complaints string, err error) {
	configuration, err := clientcmd.LoadFromFile(c.Kubeconfig())
	if err != nil {
		return "", "", err
	}
	for _, info := range configuration.AuthInfos {
		info.Impersonate = user
	}
	file := filepath.Join(filepath.Dir(c.Kubeconfig()), "as-"+user+".kubeconfig")
	if err := clientcmd.WriteToFile(*configuration, file); err != nil {
		return "", "", err
	}
	// The last of two flags counts.
	command := append([]string{"exec", "cp", "--"}, append(c.millrace(args...), "--kubeconfig", file)...)
	printed, complained, err := c.outputs(ctx, nil, command...)
	return string(printed), string(complained), err
}

// InterruptMillrace runs `millrace ARGS…` next to the API server and interrupts it after a
// time, as Ctrl-C does. complaints is what it printed to standard error. err is that
// of millrace itself.
func (c *Cluster) InterruptMillrace(ctx context.Context, after time.Duration, args ...string) (out, complaints string, err error) {
	command := []string{"exec", "cp", "--", "timeout", "--preserve-status", "--signal=INT", strconv.Itoa(int(after.Seconds()))}
	stdout, stderr, err := c.outputs(ctx, nil, append(command, c.millrace(args...)...)...)
	return string(stdout), string(stderr), err
}

func (c *Cluster) millrace(args ...string) []string {
	return append([]string{filepath.Join(c.root, "bin", "millrace"), "--kubeconfig", c.Kubeconfig()}, args...)
}

// Kubeconfig is the administrator's, as the lab writes it.
func (c *Cluster) Kubeconfig() string {
	return filepath.Join(c.root, ".lab", "pki", "admin.kubeconfig")
}
