// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// Millrace runs `millrace ARGS…` on the API server's host and returns its output.
func (c *Cluster) Millrace(ctx context.Context, args ...string) (string, error) {
	out, err := c.Exec(ctx, "cp", c.millrace(args...)...)
	return string(out), err
}

// MillraceAs runs `millrace ARGS…` as a user and returns stdout and stderr.
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
	// The last flag wins.
	command := append([]string{"exec", "cp", "--"}, append(c.millrace(args...), "--kubeconfig", file)...)
	printed, complained, err := c.outputs(ctx, nil, command...)
	return string(printed), string(complained), err
}

// InterruptMillrace runs `millrace ARGS…` and sends SIGINT after a time. complaints is its stderr.
func (c *Cluster) InterruptMillrace(ctx context.Context, after time.Duration, args ...string) (out, complaints string, err error) {
	command := []string{"exec", "cp", "--", "timeout", "--preserve-status", "--signal=INT", strconv.Itoa(int(after.Seconds()))}
	stdout, stderr, err := c.outputs(ctx, nil, append(command, c.millrace(args...)...)...)
	return string(stdout), string(stderr), err
}

func (c *Cluster) millrace(args ...string) []string {
	return append([]string{filepath.Join(c.root, "bin", "millrace"), "--kubeconfig", c.Kubeconfig()}, args...)
}

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string {
	return filepath.Join(c.root, ".lab", "pki", "admin.kubeconfig")
}
